"""Several ranks of a job: who waits for whom, and what is no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwatch.errors import UsageError
from flopwatch.traces.explained_trace import ExplainedTrace, explain_trace
from flopwatch.traces.rank_traces import compare_ranks, is_one_job
from tests.traces.trace_maker import TraceMaker


def make_rank(
    path: Path,
    rank: int | None,
    computing_us: float,
    *,
    world_size: int = 3,
    steps: int = 2,
    first_step: int = 1,
    slowest_us: float = 60.0,
) -> ExplainedTrace:
    """Computes, then waits in a collective until the slowest has come, and 10 us more."""
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
    maker = TraceMaker(**about)
    for number in range(steps):
        start = 100.0 * number
        maker.step(first_step + number, start, 100)
        maker.kernel("gemm", start, computing_us, launched=start - 2)
        maker.kernel(
            "ncclDevKernel_AllReduce", start + computing_us, slowest_us - computing_us + 10,
            launched=start - 1, stream=20,
        )  # fmt: skip
    return explain_trace(maker.write(path / f"rank-{rank}-{computing_us}.json"))


def test_the_rank_with_the_shortest_collectives_makes_the_others_wait(tmp_path: Path) -> None:
    traces = [make_rank(tmp_path, rank, us) for rank, us in ((2, 30), (0, 20), (1, 60))]
    assert is_one_job(traces)
    found = compare_ranks(traces)
    assert [share.rank for share in found.ranks] == [0, 1, 2]
    assert [share.waiting_ns for share in found.ranks] == [40_000, 0, 30_000]
    assert [share.caused_ns for share in found.ranks] == [0, 35_000, 0]
    assert [share.last_in for share in found.ranks] == [0, 2, 0]
    assert found.collectives == 2
    assert found.straggler is not None
    assert found.straggler.rank == 1


def test_even_ranks_have_no_straggler(tmp_path: Path) -> None:
    traces = [make_rank(tmp_path, rank, us) for rank, us in ((0, 60), (1, 59.5))]
    assert compare_ranks(traces).straggler is None


def test_ranks_without_common_collectives_say_nothing_of_waiting(tmp_path: Path) -> None:
    traces = [make_rank(tmp_path, 0, 20, steps=3), make_rank(tmp_path, 1, 60)]
    found = compare_ranks(traces)
    assert found.collectives == 0
    assert [share.waiting_ns for share in found.ranks] == [None, None]
    assert found.straggler is None


def test_what_is_no_job_is_refused(tmp_path: Path) -> None:
    one = make_rank(tmp_path, 0, 20)
    for other, sentence in (
        (make_rank(tmp_path, 0, 30), "are both of rank 0, so that they are of different jobs"),
        (make_rank(tmp_path, 1, 30, world_size=8), "of a job of 3 ranks and .* of one of 8"),
        (make_rank(tmp_path, 2, 30, first_step=50), "have no step in common"),
        (make_rank(tmp_path, None, 30), "does not say which rank it is of"),
    ):
        with pytest.raises(UsageError, match=sentence):
            compare_ranks([one, other])


def test_collectives_are_matched_within_their_process_groups(tmp_path: Path) -> None:
    """Four ranks, groups of two: each group has its own who comes last."""
    traces = []
    for rank, computing_us in enumerate((20, 50, 60, 30)):
        group = "[0, 1]" if rank < 2 else "[2, 3]"
        slowest_us = 50 if rank < 2 else 60
        maker = TraceMaker(distributedInfo={"rank": rank, "world_size": 4})
        maker.step(1, 0, 100)
        maker.kernel("gemm", 0, computing_us, launched=-2)
        maker.kernel("ncclAllReduce", computing_us, slowest_us - computing_us + 5, launched=-1)
        maker.events[-2]["args"]["Process Group Ranks"] = group
        traces.append(explain_trace(maker.write(tmp_path / f"{rank}.json")))
    found = compare_ranks(traces)
    assert [share.waiting_ns for share in found.ranks] == [30_000, 0, 0, 30_000]
    assert [share.last_in for share in found.ranks] == [0, 1, 1, 0]
    assert found.collectives == 2
