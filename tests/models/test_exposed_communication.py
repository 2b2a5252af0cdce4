"""What the journal says that collectives cost, against what torch's profiler sees of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile
from torch.distributed.fsdp import FSDPModule

from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.parallelize import UNNOTED
from flopwatch.models.training_loop import make_workload
from flopwatch.suites.workload import Workload
from flopwatch.worker.communicator import resolve
from flopwatch.worker.rank_times import count_overlapped_ns
from flopwatch.worker.sampling import run_once
from tests.models.test_parallelize import make_job
from tests.rank_tools import run_on_ranks

Interval = tuple[float, float]


def unite(intervals: Iterable[Interval]) -> list[Interval]:
    """In order, without overlaps."""
    united: list[Interval] = []
    for start, end in sorted(intervals):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((start, end))
    return united


def measure_exposed(communication: Iterable[Interval], computing: Iterable[Interval]) -> float:
    """How long something is communicated while nothing is computed."""
    both = unite([*communication, *(busy := unite(computing))])
    return sum(end - start for start, end in both) - sum(end - start for start, end in busy)


@pytest.mark.parametrize(
    ("communication", "computing", "exposed"),
    [
        ([], [(0, 5)], 0),
        ([(0, 5)], [], 5),
        ([(0, 5), (3, 8)], [], 8),  # at once in two streams
        ([(2, 4)], [(0, 5)], 0),  # hidden
        ([(0, 5)], [(2, 4)], 3),  # on both sides
        ([(0, 5), (6, 9)], [(4, 7), (7, 8)], 5),
    ],
)
def test_exposed_is_what_no_computation_covers(
    communication: list[Interval], computing: list[Interval], exposed: float
) -> None:
    assert measure_exposed(communication, computing) == exposed


def compare_with_profiles(jobs: list[TrainingJob]) -> list[dict[str, Any]]:
    found = []
    for job in jobs:
        torch.manual_seed(0)
        workload = make_workload(job, "cpu")
        run_once(workload)
        journal = workload.journal
        assert journal is not None
        journal.clear()
        with profile(use_kineto=True) as profiler:
            run_once(workload)
        events = [
            (e.name, (e.time_range.start, e.time_range.end)) for e in profiler.function_events
        ]
        sent = [interval for name, interval in events if name.startswith("gloo:")]
        computed = [interval for name, interval in events if name.startswith("aten::")]
        stopped_ns = [v.left - v.arrived for v in journal.visits if v.left is not None]
        found.append(
            {
                "collectives": len(sent),
                "exposed_us": measure_exposed(sent, computed),
                "stopped_us": sum(stopped_ns) / 1e3,
                "visits": len(journal.visits),
                "is_known": journal.read().visits is not None,
                "notes": list(workload.notes),
            }
        )
        found[-1]["overlapped_ns"] = find_overlapped(workload)
    return found


def find_overlapped(workload: Workload) -> float | None:
    """In one run."""
    journal = workload.journal
    assert journal is not None
    journal.clear()
    marks = [journal.clock.mark()]
    run_once(workload)
    run = resolve(journal.clock, 0.0, [*marks, journal.clock.mark()], journal.read())
    return None if run.stops is None else count_overlapped_ns(run.stops)


def compare_all(jobs: list[TrainingJob]) -> list[dict[str, Any]]:
    """The last job as in a torch that shows nothing of fully_shard's collectives."""
    found = compare_with_profiles(jobs[:-1])
    del FSDPModule.set_custom_all_gather
    return [*found, *compare_with_profiles(jobs[-1:])]


def test_what_a_profile_shows_as_exposed_lies_in_the_visits_of_the_journal() -> None:
    """The model is larger than one of DDP's buckets."""
    ways = ("none", "full", "zero2", "ddp", "full")
    jobs = [make_job(2, variant=way) for way in ways]
    jobs[3] = replace(jobs[3], model="decoder:hidden_size=256:layers=2:vocabulary=20000")
    for of_rank in run_on_ranks(2, compare_all, jobs):
        *stopped, passed, unseen = of_rank
        for way, each in zip(ways, stopped, strict=False):
            assert each["collectives"] == each["visits"] > 0, way
            assert 0 < each["exposed_us"] <= each["stopped_us"], way
            assert each["overlapped_ns"] == 0, way
        assert passed["visits"] > 1
        assert passed["overlapped_ns"] > 0
        assert (unseen["is_known"], unseen["overlapped_ns"]) == (False, None)
        assert unseen["notes"] == [UNNOTED]
