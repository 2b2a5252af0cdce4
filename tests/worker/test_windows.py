"""Runs that follow each other without a pause, on one process and on ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flopwatch.analysis.statistics import median
from flopwatch.runner import session
from flopwatch.settings import Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.rank_times import Run, Share, Stop, fold_share, split
from flopwatch.worker.sampling import WINDOW_NS, Sampler
from flopwatch.worker.timed_runs import take_sample, time_phases
from tests.conftest import FakeClock
from tests.runner.test_session import QUICK, SilentWatcher

pytestmark = pytest.mark.usefixtures("uncollected")


class Log:
    """A workload of two phases that can run ahead, and what became of it."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.words: list[str] = []
        self.workload = Workload(
            phases={
                "forward": lambda: self.note("forward", 2e6),
                "backward": lambda _: self.note("backward", 3e6),
            },
            reset=lambda: self.note("reset", 50e6),
            ahead=self.run_ahead,
        )

    def note(self, word: str, ns: float) -> None:
        self.words.append(word)
        self.clock.spend(ns)

    def run_ahead(self, calls: int) -> Callable[[], None]:
        self.note(f"prepare {calls}", 50e6 * calls)
        return lambda: self.note("begin", 1e6)


def test_a_window_is_prepared_once_and_timed_without_gaps(clock: FakeClock) -> None:
    log = Log(clock)
    taken = take_sample(log.workload, 3, clock, now_ns=lambda: clock.now_ns)
    assert log.words == ["prepare 3", *["begin", "forward", "backward"] * 3]
    assert taken.phase_ns == [3 * (1e6 + 2e6), 3 * 3e6]  # what begins a run is timed with it
    assert taken.enqueue_ns == 18e6


def test_cold_caches_allow_no_windows(clock: FakeClock) -> None:
    log = Log(clock)
    assert time_phases(log.workload, 2, clock, evict=lambda: log.note("evict", 1e6)) == [4e6, 6e6]
    assert log.words == ["reset", "evict", "forward", "backward"] * 2


def test_windows_grow_until_their_beginning_does_not_matter(clock: FakeClock) -> None:
    log = Log(clock)
    sampler = Sampler(
        {"a": log.workload},
        baseline="a",
        settings=Settings(budget_s=100),
        target=clock,
        now_s=clock.now_s,
    )
    sampler.run()
    (series,) = sampler.series
    assert series.calls_per_sample[-1] * 6e6 >= 0.8 * WINDOW_NS
    assert series.phase_ns[-1] == pytest.approx([3e6, 3e6])  # of one run


def test_the_share_of_a_rank_is_that_of_an_average_run() -> None:
    share = Share([1.0, 10.0, 3.0, 30.0], 6.0, 8.0, None)
    assert fold_share(share, 2) == Share([2.0, 20.0], 3.0, 4.0, None)
    assert fold_share(share, 4) == share


def test_a_collective_that_ended_before_it_was_needed_stops_nobody() -> None:
    """Exposed is only what the computation waited for."""
    needed = [Run(0.0, (20.0,), (Stop(10.0, left_ns),)) for left_ns in (7.0, 13.0)]
    hidden, exposed = split(needed)
    assert (hidden.waiting_ns, hidden.transfer_ns) == (0.0, 0.0)
    assert (exposed.waiting_ns, exposed.transfer_ns) == (0.0, 3.0)


SUITE = """
import time
import torch
from torch import distributed
import flopwatch
from flopwatch.devices.cpu import CpuClock
from flopwatch.worker.rank_times import Journal

suite = flopwatch.Suite("job", axes={"ranks": [2]}, variants=["ahead"])

@suite.build
def build(case):
    rank, journal, seen = distributed.get_rank(), Journal(CpuClock()), []

    def work():
        time.sleep(0.03 if rank else 0.001)

    def meet(_):
        with journal.visit():
            distributed.all_reduce(torch.ones(8))

    def ahead(calls):
        seen.append(calls)
        return lambda: None

    def curves():
        yield {"longest": max(seen)}

    return flopwatch.Workload(
        phases={"work": work, "meet": meet},
        reset=lambda: seen.append(0),
        ahead=ahead,
        journal=journal,
        curves=curves,
    )
"""


def test_ranks_run_windows_together(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(SUITE)
    options = session.Options(
        suite=str(path), settings=QUICK, out=tmp_path / "out.jsonl", force=True
    )
    (record,) = session.run(options, SilentWatcher()).measured
    assert record.status == "ok", record.message
    calls = record.calls_per_sample[-1]
    assert calls > 1
    assert record.curves["longest"] == [calls]
    assert record.queue is None  # of a CPU
    fast, slow = record.ranks
    for rank in (fast, slow):
        assert len(rank.waiting_ns) == len(record.rounds)
        assert rank.waiting_ns[0] is rank.overlapped_ns[0] is None  # the check is no common run
        assert set(rank.overlapped_ns[1:]) == {0.0}  # it stands still at its only collective
    assert min(slow.samples_ns["work"]) >= 30e6  # it sleeps so long in each run
    fast_ns, slow_ns = ([ns for ns in rank.waiting_ns if ns is not None] for rank in (fast, slow))
    assert median(fast_ns) > median(slow_ns)
