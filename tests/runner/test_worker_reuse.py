"""Spawned workers that serve several requests in turn, and those that must not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flopwatch.records.record import Record
from flopwatch.runner import host, worker_processes
from flopwatch.runner.local_launcher import Launcher
from flopwatch.settings import Settings
from flopwatch.worker.messages import BrokenMessage, Describe, Returned
from tests.runner.test_session import SilentWatcher, run, wait_until

SUITE = """
import os, signal, subprocess, sys, threading, time
import torch
from torch import distributed
import flopwatch

suite = flopwatch.Suite(
    "several",
    axes={axes},
    variants=["plain", "odd"],
    accepts=lambda axis, value: True,
    {options}
)

@suite.build
def build(case):
    x = torch.arange(8.0)
    if case.variant == "odd":
        pass
        {odd}
    note = f"{{os.path.dirname(__file__)}}/pid of {{os.environ.get('RANK', '0')}}"
    open(note, "a").write(f"{{os.getpid()}} ")
    return flopwatch.Workload(phases={{"call": lambda: x + x}}, facts={{"pid": os.getpid()}})

{more}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A suite of three groups; its workers are spawned, as on an accelerator."""

    def spawn(**given: Any) -> Launcher:
        return Launcher(**{**given, "fork": False})

    monkeypatch.setattr(host, "Launcher", spawn)

    def write(
        odd: str = "", more: str = "", options: str = "", axes: str = "{'n': [1, 2, 3]}"
    ) -> Path:
        path = tmp_path / "several.py"
        path.write_text(SUITE.format(odd=odd.strip(), more=more, options=options, axes=axes))
        return path

    return write


def measure(path: Path, watcher: SilentWatcher | None = None) -> dict[tuple[str, int], Record]:
    """Records by variant and group."""
    measured = run(path, watcher).measured
    return {(record.variant, record.params["n"]): record for record in measured}


def list_pids(records: dict[tuple[str, int], Record]) -> list[float]:
    return [record.facts["pid"] for (variant, _), record in records.items() if variant == "plain"]


def list_failures(records: dict[tuple[str, int], Record]) -> dict[tuple[str, int], str]:
    return {key: record.status for key, record in records.items() if record.status != "ok"}


COLUMN = """
import resource

@suite.column(unit="count")
def twice(row):
    "n"
    return 2 * row.record.params["n"]
"""


def test_a_process_measures_several_groups(write: Write) -> None:
    """What is not supported, and columns that the suite computes in between, do not matter; and the
    limit of memory holds for each."""
    odd = """
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 3 * 2**30
        if case.n == 2:
            raise flopwatch.Unsupported("not here")
    """
    records = measure(write(odd, more=COLUMN))
    assert list_failures(records) == {("odd", 2): "unsupported"}
    assert len(set(list_pids(records))) == 1
    assert [records["plain", n].columns["twice"].value for n in (1, 2, 3)] == [2, 4, 6]
    assert all(record.rounds and record.sources for key, record in records.items() if key[1] != 2)


def test_a_failure_is_a_row_of_the_guilty_and_the_rest_goes_on(write: Write) -> None:
    odd = """
        if case.n == 2:
            raise ValueError("odd")
        if case.n == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.ones(8) if case.n == 6 else x
    """
    watcher = SilentWatcher()
    records = measure(write(odd, axes="{'n': [1, 2, 3, 4, 5, 6, 7]}"), watcher)
    assert list_failures(records) == {("odd", 2): "crash", ("odd", 4): "crash", ("odd", 6): "wrong"}
    assert (records["odd", 4].message or "").startswith("killed by SIGKILL during build")
    pids = list_pids(records)
    assert len({*pids[:3], *pids[4:]}) == 6  # what is left of group 4 is measured without failure
    # Each was tried in a process that had measured the group before, and then in a new one.
    assert len([said for said in watcher.said if "in a new process" in said]) == 3


def test_what_is_left_of_a_group_does_not_reach_the_next(write: Write) -> None:
    odd = """
        if case.n == 1:
            open(__file__, "a").write("# changed")
        if case.n == 2:
            subprocess.Popen(["sleep", "1000"])
        if case.n == 3:
            sys.modules["left"] = None  # nobody looks for that
        if case.n == 4 and "left" in sys.modules:
            raise ValueError("fails after the group before, and not by itself")
    """
    records = measure(write(odd, axes="{'n': [1, 2, 3, 4]}"))
    assert list_failures(records) == {}
    assert len(set(list_pids(records))) == 4


def test_a_suite_may_ask_for_new_processes(write: Write) -> None:
    records = measure(write(options="fresh=True,", axes="{'n': [1, 2]}"))
    assert list_failures(records) == {}
    assert len(set(list_pids(records))) == 2


@pytest.mark.slow
def test_ranks_of_a_job_keep_their_processes_until_one_dies(write: Write, tmp_path: Path) -> None:
    odd = """
        if case.n == 3 and distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    records = measure(write(odd, axes="{'ranks': [2], 'n': [1, 2, 3]}"))
    assert list_failures(records) == {("odd", 3): "crash"}
    assert (records["odd", 3].message or "").startswith("rank 1: killed by SIGKILL")
    for rank in range(2):
        pids = (tmp_path / f"pid of {rank}").read_text().split()
        assert len(set(pids[:4])) == 1  # two variants of two groups


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher(environment={}, fork=False) as made:
        yield made


def describe(launcher: Launcher, path: Path, *, fresh: bool = False) -> tuple[int, bool]:
    """The pid of the worker that has described a suite, and whether it had served before."""
    request = Describe(settings=Settings(), suite_path=str(path), fresh=fresh)
    with closing(launcher.start(request)) as worker:
        assert [type(report) for report in worker.reports(60.0)] == [Returned]
        return worker.process.pid, worker.is_reused


def test_a_process_that_ends_while_it_waits_is_replaced(
    launcher: Launcher, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "TAKING_S", 0.5)
    path = write()
    first, _ = describe(launcher, path)
    assert describe(launcher, path) == (first, True)
    os.kill(first, signal.SIGKILL)
    second, is_reused = describe(launcher, path)
    assert not is_reused
    os.kill(second, signal.SIGSTOP)
    third, is_reused = describe(launcher, path)
    assert not is_reused
    assert len({first, second, third}) == 3
    fourth, is_reused = describe(launcher, path, fresh=True)
    assert not is_reused
    launcher.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (second, third, fourth)))


def test_another_suite_needs_another_process(launcher: Launcher, write: Write) -> None:
    path = write()
    first, _ = describe(launcher, path)
    other = path.with_name("other.py")
    other.write_text(path.read_text())
    assert describe(launcher, other)[0] != first


def test_a_launcher_may_keep_none(write: Write) -> None:
    path = write()
    with Launcher(environment={}, fork=False, keep=False) as launcher:
        assert describe(launcher, path)[0] != describe(launcher, path)[0]


def test_a_forked_process_serves_one_request(tmp_path: Path) -> None:
    path = tmp_path / "hostile.py"
    path.write_text(
        "import os\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    place = f'/proc/self/fd/{name}'\n"
        "    if os.path.islink(place) and os.readlink(place).startswith('pipe:'):\n"
        '        os.write(int(name), b\'{"kind": "Served"}\\n\')\n'
    )
    request = Describe(settings=Settings(), suite_path=str(path))
    with (
        Launcher(environment={}, preload=()) as launcher,
        closing(launcher.start(request)) as worker,
        pytest.raises(BrokenMessage),
    ):
        list(worker.reports(60.0))
