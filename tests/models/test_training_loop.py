"""A training job: its sequences, its losses, what it holds, and what makes it wrong."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flopwatch.devices.cpu import CpuClock, measure_memory
from flopwatch.errors import Unsupported
from flopwatch.jobs.rank_memory import estimate_rank_memory
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.training_loop import (
    draw_sequences,
    make_reference,
    make_workload,
)
from flopwatch.worker.agreement import WrongResult, compare, gather
from flopwatch.worker.instruments import Diverged, take_points
from flopwatch.worker.sampling import run_once, run_phases
from flopwatch.worker.timed_runs import time_phases
from tests.models.test_parallelize import make_job
from tests.rank_tools import run_on_ranks

MEASURED = "decoder:hidden_size=128:layers=4:heads=4:vocabulary=1000:positions=64"


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def test_sequences_follow_from_seed_step_and_place() -> None:
    whole = draw_sequences(50, 12, 3, 7, range(6))
    assert whole.shape == (6, 12)
    assert whole.min() >= 0
    assert whole.max() < 50
    parts = [draw_sequences(50, 12, 3, 7, places) for places in (range(2), range(2, 6))]
    assert torch.equal(torch.cat(parts), whole)
    for other in (draw_sequences(50, 12, 4, 7, range(6)), draw_sequences(50, 12, 3, 8, range(6))):
        assert not torch.equal(other, whole)
    assert len({tuple(row) for row in whole.tolist()}) == 6


def test_early_tokens_are_frequent() -> None:
    drawn = draw_sequences(1000, 5000, 0, 0, [0])
    assert set(drawn.unique().tolist()) <= set(range(1000))
    assert (drawn < 10).float().mean() > 0.25
    assert drawn.max() > 900


def test_it_learns() -> None:
    workload = make_workload(make_job(1), "cpu")
    for _ in range(40):
        run_once(workload)
    assert workload.curves is not None
    points = list(workload.curves())
    assert [point["step"] for point in points] == list(range(1, 41))
    first, last = ([p["loss"] for p in points[where]] for where in (slice(10), slice(-10, None)))
    assert sum(last) < sum(first) - 0.2


def test_every_step_has_sequences_of_its_own() -> None:
    workload = make_workload(make_job(1), "cpu")
    values = [gather(workload, CpuClock()).values["loss"].item() for _ in range(2)]
    assert values[0] != values[1]


@pytest.mark.parametrize("grad_accum", [1, 2])
def test_steps_that_are_drawn_ahead_train_on_the_same_sequences(grad_accum: int) -> None:
    torch.manual_seed(0)
    one_by_one = make_workload(make_job(1, grad_accum), "cpu")
    for _ in range(4):
        run_once(one_by_one)
    torch.manual_seed(0)
    ahead = make_workload(make_job(1, grad_accum), "cpu")
    run_once(ahead)
    begin = ahead.reset.__self__.draw_ahead(3)  # type: ignore[union-attr]
    for _ in range(3):
        begin()
        run_phases(ahead)
    assert one_by_one.curves is not None
    assert ahead.curves is not None
    assert list(ahead.curves()) == list(one_by_one.curves())


def test_only_what_works_through_a_queue_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_workload(make_job(1), "cpu").ahead is None
    monkeypatch.setattr("flopwatch.models.training_loop.is_host", lambda device: False)
    workload = make_workload(make_job(1), "cpu")
    assert workload.ahead is not None
    taken = time_phases(workload, 5, CpuClock())  # a window of 5 steps
    assert len(taken) == 3
    assert workload.curves is not None
    assert len(list(workload.curves())) == 5


@pytest.mark.parametrize("word", ["cuda-graph", "reduce-overhead"])
def test_graphs_are_refused(word: str) -> None:
    with pytest.raises(Unsupported, match="in the suite steps only"):
        make_workload(make_job(1, variant=f"none+{word}"), "cpu")


@pytest.mark.parametrize("grad_accum", [1, 4])
def test_phases_and_facts(grad_accum: int) -> None:
    workload = make_workload(make_job(1, grad_accum), "cpu")
    phases = ["grad_accum"] if grad_accum > 1 else []
    assert list(workload.phases) == [*phases, "forward", "backward", "optimizer"]
    facts = workload.list_facts()
    assert facts["tokens"] == 8 * 16
    assert facts["sequences"] == facts["global_batch"] == 8
    assert facts["micro_batch"] * facts["grad_accum"] * facts["ranks"] == 8
    assert (facts["layers"], facts["hidden_size"], facts["seq_len"]) == (2, 32, 16)
    assert facts["parameters"] == 32 * (101 + 16) + 2 * (12 * 32**2 + 13 * 32) + 2 * 32


def test_a_loss_that_is_not_finite_is_not_timed() -> None:
    workload = make_workload(make_job(1), "cpu")
    spoil(workload)
    with pytest.raises(Diverged, match="its loss is nan in step 1; a training that diverges"):
        gather(workload, CpuClock())


def test_a_loss_that_is_not_finite_later_is_found_by_the_study() -> None:
    workload = make_workload(make_job(1), "cpu")
    gather(workload, CpuClock())
    spoil(workload)
    run_once(workload)
    assert workload.curves is not None
    with pytest.raises(Diverged, match="its training diverged: loss is nan in step 2"):
        list(take_points(workload.curves))


def spoil(workload: Any) -> None:
    """Make a weight infinite, as a training that diverges does in the end."""
    with torch.no_grad():
        next(workload.reset.__self__.models[0].parameters()).fill_(float("inf"))


def test_a_gradient_that_is_not_averaged_is_wrong() -> None:
    """Of half of the sequences, what rank 0 would have without the other."""
    expected = gather(make_reference(make_job(2), "cpu"), CpuClock()).values
    values = gather(make_workload(make_job(1, micro_batch=4), "cpu"), CpuClock()).values
    assert values.keys() == expected.keys()
    with pytest.raises(WrongResult):
        compare(values, expected, against="the reference", tolerance=3e-3)


def test_layers_that_cannot_be_made_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="divide"):
        make_workload(make_job(1, variant="none+dyad:it:7"), "cpu")


def test_the_reference_computes_swapped_layers_by_the_plain_formula() -> None:
    job = make_job(1, variant="none+dyad:auto:4@linear")
    values = gather(make_workload(job, "cpu"), CpuClock()).values
    torch.manual_seed(0)
    expected = gather(make_reference(job, "cpu"), CpuClock()).values
    assert compare(values, expected, against="the reference", tolerance=1e-4) is not None


HELD = [
    (1, "fp32", "ddp"),
    (1, "fp32", "full"),
    (1, "fp32", "full+recompute-full"),
    (2, "fp32", "none"),
    (2, "fp32", "zero2"),
    (2, "fp32", "full+recompute-selective"),
]


def measure_all(jobs: list[TrainingJob]) -> list[int]:
    """Bytes that a step holds beyond what was there before it."""
    found = []
    for job in jobs:
        workload = make_workload(job, "cpu")
        for _ in range(2):  # the first steps make what stays
            run_once(workload)
        assert workload.reset is not None
        memory = measure_memory(workload.reset, workload.phases)
        assert memory is not None
        found.append(memory.peak_bytes)
        del workload
        gc.collect()
    return found


@pytest.mark.slow
def test_ranks_hold_what_is_predicted() -> None:
    jobs = [
        make_job(2, number, way, model=MEASURED, seq_len=64, micro_batch=4, precision=precision)
        for number, precision, way in HELD
    ]
    for job, measured in zip(jobs, run_on_ranks(2, measure_all, jobs)[0], strict=True):
        parts = estimate_rank_memory(job, on_host=True)
        before = ("parameters", "buffers", "optimizer state", "buckets")
        held = sum(parts.get(part, 0) for part in before)
        assert sum(parts.values()) == pytest.approx(held + measured, rel=0.15), job


def test_shards_are_smaller() -> None:
    whole, *kept = (
        estimate_rank_memory(make_job(8, variant=way, model=MEASURED), on_host=True)
        for way in ("none", "full", "zero2")
    )
    for part in ("parameters", "optimizer state"):
        assert kept[0][part] == whole[part] // 8
    assert kept[0]["gathered parameters"] < kept[1]["gathered parameters"]
    assert kept[1]["gathered parameters"] == whole["parameters"]


def test_autocast_shards_gather_16_bits() -> None:
    short, full = (
        estimate_rank_memory(make_job(2, variant="full", precision=precision), on_host=True)
        for precision in ("bf16-mixed", "fp32")
    )
    assert short["parameters"] == full["parameters"]
    assert short["gathered parameters"] * 2 == full["gathered parameters"]
