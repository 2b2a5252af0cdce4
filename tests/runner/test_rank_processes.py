"""Groups that run on several ranks: their times, their troubles, and who is to blame."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch import distributed

from flopwatch.analysis.part_times import find_slow_rank, split_ranks
from flopwatch.analysis.statistics import median
from flopwatch.analysis.summary import summarize
from flopwatch.errors import UsageError, WorkerError
from flopwatch.output.training_tables import make_rank_sheets
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.runner import session
from flopwatch.runner.rank_addresses import listen
from flopwatch.runner.rank_processes import find_free_port
from flopwatch.runner.torchrun_launcher import (
    TorchrunRanks,
    assign,
    connect,
    find_place,
)
from flopwatch.worker.communicator import Communicator
from flopwatch.worker.messages import End, RankPlace
from flopwatch.worker.rank_times import Run, Share, Stop, average, combine, split
from tests.rank_tools import run_on_ranks
from tests.runner.test_session import QUICK, SilentWatcher

SUITE = """
import os, signal, time
import torch
from torch import distributed
import flopwatch
from flopwatch.devices.cpu import CpuClock
from flopwatch.worker.rank_times import Journal

suite = flopwatch.Suite(
    "job",
    axes={"ranks": [2], "size": [8]},
    variants=["even", "slow", "dies", "raises", "unsupported", "wrong", "hungry", "first dies",
              "first raises", "late", "diverges"],
    accepts=lambda axis, value: axis in ("size", "ranks", "variant"),
    searches={"size": lambda case: range(1, 101)},
)

@suite.build
def build(case):
    rank, journal, calls = distributed.get_rank(), Journal(CpuClock()), []
    x = torch.full((case.size,), 1.0 + rank)
    if case.variant == "unsupported":
        raise flopwatch.Unsupported("nobody can do that")

    def work():
        calls.append(rank)
        if len(calls) > 3:
            if case.variant == ("dies" if rank else "first dies"):
                os.kill(os.getpid(), signal.SIGKILL)
            if case.variant == ("raises" if rank else "first raises"):
                raise ValueError(f"rank {rank} has had enough")
        if case.variant == "late" and rank == 1 and "curves taken" in calls:
            raise ValueError("only its memory was left to be looked at")
        if case.variant == "hungry" and case.size > 11 and rank == 1:
            raise MemoryError("it is too much")
        time.sleep(0.2 if case.variant == "slow" and rank == 1 else 0.001)
        return x.clone()

    def meet(summed):
        with journal.visit():
            distributed.all_reduce(summed)
        return summed + (case.variant == "wrong")

    def curves():
        calls.append("curves taken")
        for step in (1.0, 2.0):
            total = torch.tensor(float(rank))
            distributed.all_reduce(total)
            is_bad = case.variant == "diverges" and step == 1.0
            yield {"step": step, "ranks": float("nan") if is_bad else total.item()}

    return flopwatch.Workload(
        phases={"work": work, "meet": meet},
        compare="all",
        values=lambda: {"whole": distributed_sum(x)},
        journal=journal,
        curves=curves,
    )

def distributed_sum(x):
    whole = x.clone()
    distributed.all_reduce(whole)
    return whole
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(SUITE)
    return path


def run(path: Path, *variants: str, **options: Any) -> tuple[dict[str, Record], SilentWatcher]:
    watcher = SilentWatcher()
    options = {"filters": [f"variant={','.join(variants)}"], **options}
    report = session.run(
        session.Options(
            suite=str(path),
            settings=QUICK,
            out=path.parent / "out.jsonl",
            force=True,  # one core must do
            **options,
        ),
        watcher,
    )
    assert list(report.measured) == read(report.out).records
    return {record.variant: record for record in report.measured}, watcher


def test_ranks_run_together_and_who_waits_is_known(suite: Path) -> None:
    records, _ = run(suite, "even", "slow", "wrong", "unsupported")
    assert {name: record.status for name, record in records.items()} == {
        "even": "ok",
        "slow": "ok",
        "wrong": "wrong",
        "unsupported": "unsupported",
    }
    slow = records["slow"]
    assert slow.check is not None
    assert {"whole", "work", "meet"} <= set(slow.check.errors)
    assert slow.curves == {"step": [1.0, 2.0], "ranks": [1.0, 1.0]}  # of all ranks
    assert len(slow.ranks) == 2
    assert all(len(rank.waiting_ns) == len(slow.rounds) for rank in slow.ranks)
    # By medians: on a busy machine the fast one is late too, now and then.
    first_ns, second_ns = (
        median([ns for ns in rank.waiting_ns[slow.warmup_samples :] if ns is not None])
        for rank in slow.ranks
    )
    assert first_ns > 100e6 > second_ns
    first, second = split_ranks(slow)
    assert find_slow_rank([first, second]) == second
    # The job's phase ends when its last rank has ended it.
    job_ns = slow.samples_ns["work"][slow.warmup_samples :]
    late_ns = slow.ranks[1].samples_ns["work"][slow.warmup_samples :]
    assert all(job >= late for job, late in zip(job_ns, late_ns, strict=True))
    (sheet,) = make_rank_sheets([row for row in summarize([slow]) if row.total_ns])
    assert [row[:2] for row in sheet.groups[0]] == [["slow", "0"], ["slow", "1"]]
    assert "wait for rank 1" in sheet.remarks[0]


def test_the_device_of_every_rank_is_looked_at(suite: Path) -> None:
    """Here only rank 1 has lowered its clocks, which rank 0 cannot see."""
    changed = SUITE.replace(
        "rank, journal, calls = ",
        "flopwatch_rank = distributed.get_rank()\n"
        "    if flopwatch_rank == 1:\n"
        "        CpuBackend.throttle_reasons = lambda backend: ['its power limit']\n"
        "    gpu_state.read_state = lambda device: gpu_state.GpuState(power_w=100.0 + "
        "flopwatch_rank)\n"
        "    rank, journal, calls = ",
    ).replace(
        "from flopwatch.devices.cpu import CpuClock",
        "from flopwatch.devices import gpu_state\n"
        "from flopwatch.devices.cpu import CpuBackend, CpuClock",
    )
    suite.write_text(changed)
    records, _ = run(suite, "even")
    assert records["even"].status == "ok", records["even"].message
    assert records["even"].throttled == ["its power limit on rank 1"]
    assert records["even"].environment["gpus"] == [{"power_w": 100.0}, {"power_w": 101.0}]


def test_a_rank_that_dies_ends_the_job_at_once_and_is_named(suite: Path) -> None:
    records, _ = run(suite, "even", "dies")
    assert records["even"].status == "ok"
    assert records["dies"].status == "crash"
    assert records["dies"].message is not None
    assert records["dies"].message.startswith("rank 1: killed by SIGKILL during sampling")


def test_a_rank_that_raises_is_the_reason_not_the_connection_that_it_broke(suite: Path) -> None:
    records, _ = run(suite, "raises")
    assert records["even"].status == "ok"
    assert records["raises"].status == "crash"
    assert records["raises"].message == "rank 1: ValueError: rank 1 has had enough (job.py:31)"


@pytest.mark.own_server
def test_who_leads_is_named_too_and_what_comes_late_costs_nobody_their_times(suite: Path) -> None:
    before = find_children()
    records, _ = run(suite, "first dies", "first raises", "late", "diverges")
    reasons = {name: record.message or "" for name, record in records.items()}
    assert reasons["first dies"].startswith("rank 0: killed by SIGKILL during sampling")
    assert reasons["first raises"] == "rank 0: ValueError: rank 0 has had enough (job.py:31)"
    assert records["diverges"].status == "wrong"
    assert "its training diverged" in reasons["diverges"]
    for name in ("even", "late"):
        assert records[name].status == "ok", reasons[name]
        assert records[name].curves["step"] == [1.0, 2.0]
    assert find_children() <= before


def find_children() -> set[int]:
    """Processes that this one has started and that are still there: servers that tests share, and
    what this test has left."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_what_fails_for_another_reason_than_memory_is_left_out_of_a_search(suite: Path) -> None:
    records, _ = run(
        suite, "unsupported", filters=[], chosen=["size=auto", "variant=even,unsupported"]
    )
    assert records["unsupported"].status == "unsupported"
    assert (records["even"].status, records["even"].params["size"]) == ("ok", 100)


def test_the_largest_that_fits_is_found_and_what_failed_is_a_row(suite: Path) -> None:
    watcher = SilentWatcher()
    # Not a share of what is free: where that has changed, what was too large is tried again.
    options: dict[str, Any] = {
        "chosen": ["size=auto", "variant=hungry"],
        "baseline": "hungry",
        "memory_limit_bytes": 3 * 2**30,
    }
    report = session.run(
        session.Options(
            suite=str(suite), settings=QUICK, out=suite.parent / "out.jsonl", force=True, **options
        ),
        watcher,
    )
    *failed, measured = report.measured
    assert [(record.params["size"], record.status) for record in failed] == [
        (16, "oom"),
        (12, "oom"),
    ]
    assert (measured.params["size"], measured.status) == (11, "ok")
    assert measured.rounds
    assert read(report.out).records == list(report.measured)
    again = session.run(
        session.Options(
            suite=str(suite), settings=QUICK, out=suite.parent / "out.jsonl", force=True, **options
        ),
        watcher,
    )
    assert [record.case_id for record in again.answered] == [measured.case_id]
    assert read(report.out).records == list(report.measured)  # and nothing was tried again


def test_torchrun_starts_the_ranks_as_well(suite: Path) -> None:
    """Two processes with the same command line: rank 0 runs, the other one attends to it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    wanted = ["--filter", "variant=even,raises", "--case-budget", "0.3s", "--force"]
    before = find_children()
    finished = subprocess.run(
        [*command, "-m", "flopwatch", "run", str(suite), *wanted, "--out", "out.jsonl"],
        cwd=suite.parent,
        env={**os.environ, "FLOPWATCH_PORT": str(find_free_port())},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    even, raises = read(suite.parent / "out.jsonl").records
    assert (even.variant, even.status, len(even.ranks)) == ("even", "ok", 2), finished.stderr
    assert raises.message == "rank 1: ValueError: rank 1 has had enough (job.py:31)"
    assert finished.returncode == 1  # some failed
    assert find_children() <= before


VARIABLES = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_a_place_is_read_from_the_usual_variables() -> None:
    assert find_place({}) is None
    assert find_place({**VARIABLES, "WORLD_SIZE": "1"}) is None
    place = find_place(VARIABLES)
    assert place == RankPlace(
        rank=1, ranks=4, local_rank=1, local_ranks=2, node_ranks=2, address="node0", port=29501
    )
    named = find_place({**VARIABLES, "FLOPWATCH_PORT": "7"})
    assert named is not None
    assert named.port == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, "many") for name in VARIABLES if name != "MASTER_ADDR"],
        *[(name, "-1") for name in VARIABLES if name != "MASTER_ADDR"],
        *[(name, "9" * 5000) for name in VARIABLES if name != "MASTER_ADDR"],
        ("WORLD_SIZE", "0"),
        ("RANK", "4"),
        ("LOCAL_RANK", "2"),
        ("LOCAL_WORLD_SIZE", "0"),
        ("LOCAL_WORLD_SIZE", "5"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("FLOPWATCH_PORT", "65536"),
        ("FLOPWATCH_PORT", "door"),
    ],
)
def test_variables_that_make_no_sense_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is '{value[:40]}' and not a number from"):
        find_place({**VARIABLES, name: value})


def test_after_the_last_port_comes_the_one_before_it() -> None:
    place = find_place({**VARIABLES, "MASTER_PORT": "65535"})
    assert place is not None
    assert place.port == 65534


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = make_place(taken.getsockname()[1])
        with pytest.raises(UsageError, match="cannot be listened on .*set FLOPWATCH_PORT"):
            listen(place)


def test_a_port_that_was_taken_meanwhile_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # it sets the variables of torchrun
    with socket.create_server(("", 0)) as taken:
        place = replace(make_place(taken.getsockname()[1]), ranks=1, local_ranks=1)
        with pytest.raises(WorkerError, match="is in use by another program; run it again"):
            Communicator(place, "cpu", patience_s=5.0)


@pytest.mark.parametrize("address", ["node0", "127.0.0.2", "192.0.2.1"])
def test_several_nodes_meet_at_the_address_of_rank_0(address: str) -> None:
    """A name may resolve to another interface elsewhere, and 192.0.2.1 is of no machine."""
    place = replace(make_place(find_free_port()), ranks=4, address=address)
    with closing(listen(place)) as listener:
        bound = listener.getsockname()[0]
    assert bound == address if address == "127.0.0.2" else bound in ("::", "0.0.0.0")


def test_ranks_that_do_not_connect_are_named() -> None:
    with pytest.raises(WorkerError, match="rank 1 of 2 did not connect within 0.2 s"):
        TorchrunRanks(make_place(find_free_port()), join_s=0.2)
    with pytest.raises(WorkerError, match="rank 0 cannot be reached at"):
        connect(make_place(find_free_port()), join_s=0.2)


def test_places_are_those_of_the_nodes_that_take_part() -> None:
    """Of two machines with four processes each."""
    places = {
        rank: replace(make_place(1), rank=rank, ranks=8, local_rank=rank % 4, local_ranks=4)
        for rank in range(8)
    }
    eight, six = assign(places, 8, "node0", 7), assign(places, 6, "node0", 7)
    assert {(place.local_ranks, place.node_ranks, place.port) for place in eight} == {(4, 4, 7)}
    assert [place.local_ranks for place in six] == [4, 4, 4, 4, 2, 2]
    assert {place.node_ranks for place in six} == {6}  # they differ: as if there were one


def test_who_is_no_rank_of_the_job_is_not_let_in() -> None:
    place = make_place(find_free_port())
    strangers = [replace(place, rank=1, ranks=3), replace(place, rank=2), replace(place, rank=0)]
    with ThreadPoolExecutor() as pool:
        hosting = pool.submit(TorchrunRanks, place, 60.0)
        for stranger in strangers:
            with pytest.raises(WorkerError):
                connect(stranger, join_s=0.3)
        line = connect(replace(place, rank=1), join_s=60.0)
        ranks = hosting.result()
    ranks.close()
    assert line.receive() == [End()]
    line.close()


def test_clocks_of_other_machines_are_compared() -> None:
    ahead_ns = run_on_ranks(2, compare_shifted_clocks)
    assert ahead_ns[0] == 0.0
    assert ahead_ns[1] == pytest.approx(5e9, abs=1e9)


def compare_shifted_clocks() -> float:
    """As rank 1, with a clock that is 5 s ahead, on a machine that was started at another time."""
    from flopwatch.worker import communicator

    rank = distributed.get_rank()
    communicator._read_boot_id = lambda: f"boot {rank}"
    real_ns = time.perf_counter_ns
    communicator.time = SimpleNamespace(perf_counter_ns=lambda: real_ns() + 5_000_000_000 * rank)
    made = object.__new__(communicator.Communicator)
    made.place = replace(make_place(1), rank=rank, local_rank=rank)
    made._distributed, made._control = distributed, distributed.group.WORLD
    return made._compare_clocks()


def make_place(port: int) -> RankPlace:
    return RankPlace(
        rank=0,
        ranks=2,
        local_rank=0,
        local_ranks=2,
        node_ranks=2,
        address="127.0.0.1",
        port=port,
    )


def test_a_job_takes_from_its_first_start_to_its_last_end() -> None:
    early, late = Run(100.0, (104.0, 110.0)), Run(101.0, (107.0, 109.0))
    assert combine([early, late]) == [7.0, 3.0]
    assert sum(combine([early, late])) == 10.0


def test_waiting_ends_when_the_last_rank_comes() -> None:
    fast = Run(0.0, (20.0,), (Stop(1.0, None), Stop(5.0, 15.0)))
    slow = Run(0.0, (20.0,), (Stop(9.0, None), Stop(12.0, 16.0)))
    waits, comes = split([fast, slow])
    assert (waits.waiting_ns, waits.transfer_ns) == (7.0, 3.0)
    assert (comes.waiting_ns, comes.transfer_ns) == (0.0, 4.0)


def test_ranks_at_different_collectives_are_not_compared() -> None:
    odd = split([Run(0.0, (9.0,), (Stop(1.0, 2.0),)), Run(0.0, (9.0,))])
    assert odd == [Share([9.0], None, None, None)] * 2


def test_clocks_that_disagree_make_nobody_wait_longer_than_it_stood_there() -> None:
    here = Run(0.0, (9.0,), (Stop(1.0, 3.0),))
    ahead = Run(0.0, (9.0,), (Stop(8.0, 9.0),))
    waits, _ = split([here, ahead])
    assert (waits.waiting_ns, waits.transfer_ns) == (2.0, 0.0)


def test_a_sample_of_several_runs_is_their_mean() -> None:
    mean = average([Share([1.0, 2.0], 3.0, 4.0, None), Share([3.0, 4.0], 5.0, 6.0, 7.0)])
    assert mean == Share([2.0, 3.0], 4.0, 5.0, None)


def test_who_does_not_see_its_collectives_knows_of_none() -> None:
    seen, unseen = Run(0.0, (9.0,), (Stop(1.0, 3.0),)), Run(0.0, (9.0,), None)
    for runs in ([unseen, unseen], [seen, unseen]):
        assert split(runs) == [Share([9.0], None, None, None)] * 2


def test_what_runs_beside_other_work_is_overlapped_until_somebody_waits_for_it() -> None:
    run = Run(
        0.0,
        (20.0,),
        (
            Stop(1.0, None, (1.0, 6.0)),  # nobody waits for it
            Stop(9.0, 12.0, (4.0, 12.0)),  # needed at 9, and 2 of it are beside the other
            Stop(15.0, 14.0, (13.0, 14.0)),  # over before it is needed
            Stop(16.0, 18.0),  # the rank stands still throughout
        ),
    )
    (share,) = split([run])
    assert (share.waiting_ns, share.transfer_ns) == (0.0, 5.0)
    assert share.overlapped_ns == (6 - 1) + (9 - 6) + (14 - 13)
