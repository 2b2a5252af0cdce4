"""Where ranks meet: addresses, interfaces and ports, also between nodes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.records.store import read
from flopwatch.runner.rank_addresses import JOB_PORTS, choose_address, find_job_port
from flopwatch.runner.rank_processes import find_free_port
from flopwatch.worker.communicator import find_interface, find_own_address
from flopwatch.worker.messages import RankPlace

PLACE = RankPlace(
    rank=1, ranks=4, local_rank=1, local_ranks=2, node_ranks=2, address="node0", port=29501
)


def test_workers_use_the_address_at_which_other_nodes_have_reached_rank_0() -> None:
    assert choose_address(PLACE, ["127.0.1.1", None, "fe80::1", "10.0.0.7"]) == "10.0.0.7"
    assert choose_address(PLACE, ["127.0.0.1", "::1"]) == "node0"
    assert choose_address(PLACE, []) == "node0"


def test_gloo_uses_the_interface_that_reaches_rank_0() -> None:
    own = find_own_address("127.0.0.1", 1)
    assert own == "127.0.0.1"
    assert find_interface(replace(PLACE, local_ranks=4)) == "lo"
    addresses = {"lo": ["127.0.0.1"], "ib0": ["127.0.0.1"]}
    # A loopback address is reached from no other node: gloo may know better.
    assert find_interface(replace(PLACE, address="127.0.0.1"), addresses) is None
    assert find_interface(replace(PLACE, address="no.such.host.invalid")) is None


def test_jobs_of_several_nodes_use_the_ports_after_that_of_flopwatch() -> None:
    with ExitStack() as stack:
        port = find_free_port()
        while port + JOB_PORTS > 60_000:
            port -= 10_000
        place = replace(PLACE, port=port)
        used = [find_job_port(place, job) for job in range(1, JOB_PORTS + 1)]
        assert set(used) <= set(range(port + 1, port + 1 + JOB_PORTS))
        assert find_job_port(place, JOB_PORTS + 1) == used[0]
        stack.enter_context(socket.create_server(("", used[0])))
        assert find_job_port(place, 1) in used[1:]
        for taken in set(used[1:]):
            stack.enter_context(socket.create_server(("", taken)))
        assert find_job_port(place, 1) not in range(port, port + 1 + JOB_PORTS)


SUITE = """
import socket
import torch
from torch import distributed
import flopwatch

assert socket.gethostbyname(socket.gethostname()).startswith("127.")
suite = flopwatch.Suite("nodes", axes={"ranks": [2], "n": [1, 2]}, variants=["plain"])

@suite.build
def build(case):
    x = torch.ones(8)

    def work():
        distributed.all_reduce(x)
        return x * 0

    return work
"""

ADDRESSES = ("10.231.77.1", "10.231.77.2")


def make_nodes(names: tuple[str, str]) -> None:
    """Two network namespaces with a cable between them, in each of which the host's own name is a
    loopback address; so is that of rank 0 on its own node."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    own = socket.gethostname()
    for name in names:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
        hosts = Path("/etc/netns") / name / "hosts"
        hosts.parent.mkdir(parents=True)
        there = "127.0.1.1" if name == names[0] else ADDRESSES[0]
        hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {own}\n{there} node0\n")
    ip("link", "add", "fw0", "netns", names[0], "type", "veth", "peer", "fw1", "netns", names[1])
    for name, link, address in zip(names, ("fw0", "fw1"), ADDRESSES, strict=True):
        ip("-n", name, "address", "add", f"{address}/24", "dev", link)
        ip("-n", name, "link", "set", link, "up")


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip (iproute2)")
    names = (f"fw-{os.getpid()}-0", f"fw-{os.getpid()}-1")
    try:
        try:
            make_nodes(names)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here ({error})")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
        with suppress(OSError):
            Path("/etc/netns").rmdir()


def test_ranks_of_two_nodes_whose_names_are_loopback_addresses(
    nodes: tuple[str, str], tmp_path: Path
) -> None:
    path, out = tmp_path / "nodes.py", tmp_path / "out.jsonl"
    path.write_text(SUITE)
    command = ["run", str(path), "--case-budget", "200ms", "--timeout", "60s", "--out", str(out)]
    job = {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29400",
        "FLOPWATCH_SECRET": "only this test knows it",
        "GLOO_SOCKET_IFNAME": "",
    }
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "flopwatch", *command],
            env={**os.environ, **job, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, name in enumerate(nodes)
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], printed
    records = read(out).records
    assert [record.status for record in records] == ["ok", "ok"], records[0].message
    assert all(len(record.ranks) == 2 for record in records)
