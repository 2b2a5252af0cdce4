"""Ranks that divide experts train to the losses of one process on the same micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from flopwatch.devices.cpu import CpuClock
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.flops import scale_to_step
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.rank_memory import estimate_rank_memory
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models import parallelize, training_loop
from flopwatch.models.feed_forward import Mixture
from flopwatch.models.job_estimates import count_once
from flopwatch.models.training_loop import make_reference
from flopwatch.worker.agreement import WrongResult, compare, gather
from tests.models.test_parallelize import train
from tests.models.test_training_loop import measure_all
from tests.rank_tools import run_on_ranks

MIXTURE = (
    "decoder:hidden_size=32:layers=2:heads=4:vocabulary=101:experts=4:active_experts=2"
    ":expert_size=48:shared_expert_size=16"
)
GLOBAL_BATCH, STEPS = 8, 4
pytestmark = pytest.mark.xdist_group("parallelize")


def make_job(
    data: int, expert: int = 1, variant: str = "none", optimizer: str = "sgd", **changes: Any
) -> TrainingJob:
    """Micro-batches are the same ones however many ranks there are: a balance loss is of one."""
    content: dict[str, Any] = {
        "model": MIXTURE,
        "seq_len": 16,
        "micro_batch": 2,
        "grad_accum": GLOBAL_BATCH // data // 2,
        "precision": "fp32",
        "optimizer": optimizer,
        "parallelism": Parallelism(data=data, expert=expert),
    }
    return parse_variant(TrainingJob(**{**content, **changes}), variant)


def train_fast(jobs: list[TrainingJob]) -> list[dict[str, Any]]:
    """With steps that change the loss: small ones would hide gradients of a wrong size."""
    found = []
    for job in jobs:
        training_loop.LEARNING_RATE = 0.3 if job.optimizer == "sgd" else 1e-3
        found.append(train(job, STEPS))
    return found


ON_TWO = [
    make_job(2, 2, variant, optimizer)
    for variant, optimizer in (
        ("none", "sgd"),
        ("ddp", "sgd"),
        ("full", "sgd"),
        ("zero2", "adamw"),
        ("ddp+recompute-full", "adamw"),
        ("none+recompute-selective", "sgd"),
        ("full+recompute-full", "sgd"),
    )
] + [
    make_job(2, 2, "ddp", precision="bf16-mixed"),
    make_job(2, 2, "full", precision="bf16-mixed"),
    make_job(2, 2, "none", model=f"{MIXTURE}:dense_layers=1:tied=true"),
]
ON_FOUR = [
    make_job(4, expert, variant, optimizer)
    for expert in (2, 4)
    for variant, optimizer in (("none", "sgd"), ("ddp", "adamw"), ("full", "sgd"))
]
TOLERANCES = {"fp32": 1e-6, "bf16-mixed": 1e-3, "bf16": 3e-3}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads, rate = torch.get_num_threads(), training_loop.LEARNING_RATE
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    training_loop.LEARNING_RATE = rate


@pytest.fixture(scope="module")
def on_two() -> dict[TrainingJob, dict[str, Any]]:
    found, second = run_on_ranks(2, train_fast, ON_TWO)
    for mine, other in zip(found, second, strict=True):
        assert mine["losses"] == other["losses"]
        assert mine["visits"] == other["visits"]
    return dict(zip(ON_TWO, found, strict=True))


@pytest.fixture(scope="module")
def on_four() -> dict[TrainingJob, dict[str, Any]]:
    return dict(zip(ON_FOUR, run_on_ranks(4, train_fast, ON_FOUR)[3], strict=True))


def train_alone(job: TrainingJob) -> list[float]:
    plain = replace(job, parallelism=Parallelism(), grad_accum=GLOBAL_BATCH // 2, recompute="none")
    losses: list[float] = train_fast([plain])[0]["losses"]
    return losses


def require_same(job: TrainingJob, found: dict[str, Any]) -> None:
    tolerance = TOLERANCES[job.precision]
    assert found["losses"] == pytest.approx(train_alone(job), rel=tolerance)
    torch.manual_seed(0)
    expected = gather(make_reference(job, "cpu"), CpuClock()).values
    limit = 1e-4 if job.precision == "fp32" else 0.05
    assert compare(found["values"], expected, against="the reference", tolerance=limit) is not None
    assert found["values"].keys() == expected.keys()


@pytest.mark.parametrize("job", ON_TWO, ids=str)
def test_two_ranks_train_to_the_losses_of_one_process(job: TrainingJob, on_two: Any) -> None:
    require_same(job, on_two[job])


@pytest.mark.slow
@pytest.mark.parametrize("job", ON_FOUR, ids=str)
def test_four_ranks_do_too(job: TrainingJob, on_four: Any) -> None:
    require_same(job, on_four[job])


def test_all_to_alls_are_noted(on_two: Any) -> None:
    """Of each of two mixtures: numbers, rows and results forward, results and rows backward."""
    once = 2 * (3 + 2)
    numbers = {job.recompute: on_two[job] for job in ON_TWO if job.sharding == "ddp"}
    assert numbers["none"]["visits"] == [[True] * (2 * once + 1)] * (STEPS - 1)
    again = 2 * 3  # what is recomputed is sent again
    assert numbers["full"]["visits"] == [[True] * (2 * (once + again) + 1)] * (STEPS - 1)


def train_with_gradients_of_a_wrong_size() -> tuple[list[float], str]:
    """Losses, and what the comparison with the reference says."""
    usual = parallelize.Average.__init__

    def make(self: Any, *given: Any, of_experts: bool) -> None:
        usual(self, *given, of_experts=of_experts)
        self._ranks = 1 if of_experts else self._ranks

    parallelize.Average.__init__ = make  # type: ignore[method-assign]
    (found,) = train_fast([make_job(2, 2)])
    torch.manual_seed(0)
    expected = gather(make_reference(make_job(2, 2), "cpu"), CpuClock()).values
    with pytest.raises(WrongResult) as caught:
        compare(found["values"], expected, against="the reference", tolerance=1e-4)
    return found["losses"], str(caught.value)


def test_a_wrong_scale_of_the_experts_gradients_is_caught() -> None:
    losses, said = run_on_ranks(2, train_with_gradients_of_a_wrong_size)[0]
    assert "experts" in said
    expected = train_alone(make_job(2, 2))
    assert losses[0] == pytest.approx(expected[0], rel=1e-6)  # before anything is updated
    assert losses[-1] != pytest.approx(expected[-1], rel=1e-5)


def test_how_unevenly_experts_are_used_is_a_curve() -> None:
    torch.manual_seed(0)
    job = make_job(1)
    workload = training_loop.make_workload(job, "cpu")
    gather(workload, CpuClock())
    assert workload.curves is not None
    ((point),) = workload.curves()
    assert set(point) == {"step", "loss", "expert_imbalance"}
    assert 1 <= point["expert_imbalance"] < 4
    assert "expert_imbalance" not in next(
        iter(make_dense_curves(replace(job, model="small:layers=1:vocabulary=64")))
    )


def make_dense_curves(job: TrainingJob) -> Any:
    workload = training_loop.make_workload(job, "cpu")
    gather(workload, CpuClock())
    assert workload.curves is not None
    return workload.curves()


def test_the_optimizer_works_on_each_ranks_own_experts() -> None:
    job, all_of_them = make_job(4, 2), make_job(4)
    own, whole = (scale_to_step(each, count_once(each)) for each in (job, all_of_them))
    experts = 2 * 4 * 3 * 32 * 48
    assert own["forward"] == whole["forward"]
    less = whole["optimizer"]["float32"] - own["optimizer"]["float32"]
    assert less == pytest.approx(2 * experts * (4 - 2))
    full = [scale_to_step(each, count_once(each)) for each in (make_job(4, 2, "full"), make_job(1))]
    assert math.isclose(full[0]["optimizer"]["float32"], full[1]["optimizer"]["float32"])


@pytest.mark.slow
def test_ranks_hold_what_is_predicted() -> None:
    large = (
        "decoder:hidden_size=64:layers=3:heads=4:vocabulary=300:experts=8:active_experts=2"
        ":expert_size=128:dense_layers=1"
    )
    jobs = [
        make_job(2, expert, way, "adamw", model=large, seq_len=64, micro_batch=4, grad_accum=1)
        for expert, way in ((1, "none"), (2, "none"), (2, "ddp"), (1, "full"), (2, "full"))
    ]
    for job, measured in zip(jobs, run_on_ranks(2, measure_all, jobs)[0], strict=True):
        parts = estimate_rank_memory(job, on_host=True)
        before = ("parameters", "buffers", "optimizer state", "buckets")
        held = sum(parts.get(part, 0) for part in before)
        assert sum(parts.values()) == pytest.approx(held + measured, rel=0.15), job


def test_ranks_that_divide_experts_hold_less() -> None:
    for way in ("none", "full"):
        whole, divided = (
            estimate_rank_memory(make_job(4, expert, way), on_host=True) for expert in (1, 4)
        )
        experts = 2 * 4 * 3 * 32 * 48 * 4
        less = whole["parameters"] - divided["parameters"]
        # Sharded, they are divided among all ranks either way, but not gathered.
        assert less == pytest.approx(experts * 3 / 4 if way == "none" else 0, rel=0.02)
        if way == "full":
            assert divided["gathered parameters"] < whole["gathered parameters"] / 2


REFUSED = {
    "ep=2 divides experts, and small has none": make_job(2, 2, model="small"),
    "ep=3 does not divide the 4 experts": make_job(3, 3, grad_accum=1),
    "divide the experts of a model of the library transformers is not known": make_job(
        2, 2, model="mixtral:hidden_size=32:layers=2:heads=4:vocabulary=101"
    ),
    "with sharding none, ddp, zero2 and full only": make_job(4, 2, "hybrid"),
    "take recompute-full, or sharding ddp": make_job(2, 2, "full+recompute-selective"),
    "leaves a checkpoint with an all-to-all inside": make_job(2, 2, "none+compiled+recompute-full"),
    "ranks divide experts only": make_job(1, parallelism=Parallelism(tensor=2)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_divided_is_refused_in_one_sentence(words: str) -> None:
    with pytest.raises((UsageError, Unsupported), match=words) as caught:
        training_loop.make_workload(REFUSED[words], "cpu")
    assert "\n" not in str(caught.value)


def test_experts_divide_data_parallel_ranks() -> None:
    with pytest.raises(UsageError, match="expert=3 does not divide the 4 ranks"):
        Parallelism(data=4, expert=3)


def test_a_model_knows_its_mixtures() -> None:
    model = training_loop.make_model(make_job(1, model=f"{MIXTURE}:dense_layers=1"))
    assert sum(isinstance(module, Mixture) for module in model.modules()) == 1
