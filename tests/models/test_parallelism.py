"""Every way to divide a model among ranks trains to the losses of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from flopwatch.devices.cpu import CpuClock
from flopwatch.jobs.divided_memory import estimate_divided, list_stage_parameters
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models import parallelize, pipeline, tensor_parallel, training_loop
from flopwatch.models.device_mesh import find_own
from flopwatch.models.training_loop import make_workload
from flopwatch.worker.agreement import WrongResult, compare, gather
from flopwatch.worker.sampling import run_once
from tests.models.test_training_loop import measure_all
from tests.rank_tools import run_on_ranks

GPT = "gpt:hidden_size=32:layers=4:heads=4:vocabulary=101:positions=16"
"""Biases, learned positions, a tied head; a vocabulary that no number of ranks divides."""
DECODER = "decoder:hidden_size=32:layers=5:heads=4:vocabulary=100"
"""None of these; layers that stages do not divide evenly."""
GATED = (
    "gpt:hidden_size=32:layers=4:heads=4:vocabulary=101:positions=16:activation=swiglu:tied=false"
)
STEPS, MICRO_BATCHES = 3, 8
RATES = {"sgd": 0.3, "adamw": 1e-3}
"""Large enough that a wrong gradient of one step is seen in the loss of the next. AdamW hides a
wrong scale of gradients, and so most train with SGD."""
pytestmark = pytest.mark.xdist_group("parallelism")

ON_TWO = [
    *[(GPT, variant) for variant in ("tp2", "tp2+sp", "tp2+sp+recompute-selective", "zero1")],
    *[(GPT, f"pp2:{name}") for name in ("gpipe", "1f1b", "interleaved", "looped-bfs")],
    *[(GPT, f"pp2:{name}") for name in ("zero-bubble", "zbv", "dualpipe-v")],
    *[(GATED, variant) for variant in ("tp2+sp", "pp2:zbv+recompute-full")],
    *[(DECODER, variant) for variant in ("tp2+sp", "tp2+recompute-full", "pp2")],
    *[(DECODER, variant) for variant in ("pp2:interleaved+recompute-selective", "pp2+dyad:auto:4")],
]
ON_FOUR = [
    *[(GPT, f"{sharding}+tp2") for sharding in ("none", "ddp", "zero2")],
    *[(DECODER, f"{sharding}+tp2+sp") for sharding in ("ddp", "full")],
    *[(GPT, f"{sharding}+pp2") for sharding in ("none", "ddp", "full")],
    *[(GPT, f"full+pp2:{name}") for name in ("gpipe", "interleaved", "zbv", "dualpipe-v")],
    *[(DECODER, "full+pp2:zero-bubble+recompute-full"), (GPT, "pp4"), (GPT, "tp4+sp")],
    *[(DECODER, "tp2+pp2"), (GPT, "tp2+sp+pp2:zbv"), (GPT, "hybrid")],
]


def make_job(ranks: int, model: str, variant: str, optimizer: str = "sgd") -> TrainingJob:
    job = TrainingJob(
        model,
        16,
        micro_batch=1,
        grad_accum=MICRO_BATCHES // ranks,
        precision="fp32",
        optimizer=optimizer,
        parallelism=Parallelism(data=ranks),
    )
    return parse_variant(job, variant)


def train(job: TrainingJob) -> dict[str, Any]:
    training_loop.LEARNING_RATE = RATES[job.optimizer]  # of a process that ends with this
    torch.manual_seed(0)
    workload = make_workload(job, "cpu")
    loop = workload.reset.__self__  # type: ignore[union-attr]
    values = gather(workload, CpuClock()).values
    for _ in range(STEPS - 1):
        run_once(workload)
    assert workload.curves is not None
    losses = [point["loss"] for point in workload.curves()]
    return {
        "losses": losses,
        "values": values,
        "parameters": workload.list_facts()["parameters"],
        "held": [sum(find_own(p).numel() for p in m.parameters()) for m in loop.models],
        "phases": list(workload.phases),
        "notes": list(workload.notes),
    }


def keep_one_micro_batch(loop: Any) -> None:
    loop._sequences[-1] = loop._sequences[0]
    pass_through(loop)


pass_through = training_loop.PipelineLoop.pass_through
BREAKS: dict[str, tuple[object, str, object]] = {
    "gradients scaled twice": (pipeline, "SCALES", True),
    "a micro-batch dropped": (training_loop.PipelineLoop, "pass_through", keep_one_micro_batch),
    "heads of other ranks": (tensor_parallel, "reorder_rows", lambda rows, sizes: rows),
    "copies of a tied weight": (pipeline.TiedWeight, "sum_gradients", lambda self: None),
    "shards freed too early": (parallelize, "keeps_gathered", lambda parallelism: False),
    "gradients not averaged": (parallelize.Replica, "finish", lambda self: None),
}
"""What is put in the place of what, for a job to go wrong."""


def train_all(jobs: list[tuple[TrainingJob, str]]) -> list[dict[str, Any]]:
    found = []
    for job, broken in jobs:
        with pytest.MonkeyPatch.context() as patch:
            if broken:
                patch.setattr(*BREAKS[broken])
            found.append(train(job))
    return found


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads, rate = torch.get_num_threads(), training_loop.LEARNING_RATE
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    training_loop.LEARNING_RATE = rate


@pytest.fixture(scope="module")
def alone() -> Callable[[TrainingJob], dict[str, Any]]:
    """The plain loop on one process, on the same sequences."""
    known: dict[TrainingJob, dict[str, Any]] = {}

    def find(job: TrainingJob) -> dict[str, Any]:
        plain = replace(job, grad_accum=MICRO_BATCHES, recompute="none", parallelism=Parallelism())
        if plain not in known:
            known[plain] = train(plain)
        return known[plain]

    return find


@pytest.fixture(scope="module")
def on_two() -> dict[Any, list[dict[str, Any]]]:
    """What both ranks give, by case."""
    return train_cases(2, [*((*case, "sgd") for case in ON_TWO), *ADAMW, *BROKEN_ON_TWO])


@pytest.fixture(scope="module")
def on_four() -> dict[Any, list[dict[str, Any]]]:
    return train_cases(4, [*((*case, "sgd") for case in ON_FOUR), *BROKEN_ON_FOUR])


ADAMW = [(GPT, variant, "adamw") for variant in ("tp2+sp", "pp2:interleaved")]
BROKEN_ON_TWO = [
    (GPT, "pp2", "sgd", "gradients scaled twice"),
    (GPT, "pp2", "adamw", "gradients scaled twice"),
    (GPT, "pp2:zbv", "sgd", "a micro-batch dropped"),
    (DECODER, "tp2", "sgd", "heads of other ranks"),
    (GPT, "pp2", "sgd", "copies of a tied weight"),
]
BROKEN_ON_FOUR = [
    (GPT, "full+pp2:zbv", "sgd", "shards freed too early"),
    (GPT, "none+pp2", "sgd", "gradients not averaged"),
]


def train_cases(ranks: int, cases: list[Any]) -> dict[Any, list[dict[str, Any]]]:
    jobs = [(make_job(ranks, *case[:3]), "".join(case[3:])) for case in cases]
    found = run_on_ranks(ranks, train_all, jobs)
    return dict(zip(cases, map(list, zip(*found, strict=True)), strict=True))


@pytest.mark.parametrize(("model", "variant", "optimizer"),
                         [*((*case, "sgd") for case in ON_TWO), *ADAMW])  # fmt: skip
def test_two_ranks_train_as_one_process(
    model: str, variant: str, optimizer: str, on_two: Any, alone: Any
) -> None:
    job = make_job(2, model, variant, optimizer)
    check(on_two[model, variant, optimizer], alone(job), job)


@pytest.mark.parametrize(("model", "variant"), ON_FOUR)
def test_four_ranks_train_as_one_process(
    model: str, variant: str, on_four: Any, alone: Any
) -> None:
    job = make_job(4, model, variant)
    check(on_four[model, variant, "sgd"], alone(job), job)


@pytest.mark.parametrize("case", BROKEN_ON_TWO)
def test_what_is_wrong_on_two_ranks_is_found(case: Any, on_two: Any, alone: Any) -> None:
    require_found(on_two[case], alone(make_job(2, *case[:3])), case[2])


@pytest.mark.parametrize("case", BROKEN_ON_FOUR)
def test_what_is_wrong_on_four_ranks_is_found(case: Any, on_four: Any, alone: Any) -> None:
    require_found(on_four[case], alone(make_job(4, *case[:3])), case[2])


def require_found(found: list[dict[str, Any]], expected: dict[str, Any], optimizer: str) -> None:
    """By the check before anything is timed, and in the losses of later steps."""
    with pytest.raises(WrongResult, match="disagrees with one process"):
        check_values(found[0], expected["values"])
    if optimizer == "sgd":
        assert found[0]["losses"] != pytest.approx(expected["losses"], rel=1e-4)


def test_shards_that_stay_gathered_are_noted(on_four: Any) -> None:
    (note,) = on_four[GPT, "full+pp2:zbv", "sgd"][0]["notes"]
    assert "parameters stay gathered" in note
    assert not on_four[GPT, "full+pp2:gpipe", "sgd"][0]["notes"]


@pytest.mark.parametrize(("model", "variant"), [*ON_TWO, *ON_FOUR])
def test_parameters_of_stages_are_counted(
    model: str, variant: str, on_two: Any, on_four: Any
) -> None:
    """Those of the first tensor-parallel rank, which has the larger part."""
    on_ranks = on_two if (model, variant) in ON_TWO else on_four
    job = make_job(2 if on_ranks is on_two else 4, model, variant)
    split = job.parallelism
    if not job.is_dense or split.sharding not in ("none", "ddp") or split.model_ranks == 1:
        pytest.skip("ranks hold other parts")
    for pipeline_rank in range(split.pipeline):
        first = pipeline_rank * job.ranks // split.pipeline
        expected = [one.parameters for one in list_stage_parameters(job, pipeline_rank)]
        assert on_ranks[model, variant, "sgd"][first]["held"] == expected


def check(found: list[dict[str, Any]], expected: dict[str, Any], job: TrainingJob) -> None:
    for each in found:  # every rank
        assert each["losses"] == pytest.approx(expected["losses"], rel=1e-6)
        assert each["parameters"] == expected["parameters"]
        is_piped = job.parallelism.pipeline > 1
        assert ("forward-backward" in each["phases"]) == is_piped
    # Loss and gradients of the first step, as rank 0 checks them before it times anything.
    assert found[0]["values"].keys() == expected["values"].keys()
    check_values(found[0], expected["values"])


def check_values(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert compare(found["values"], expected, against="one process", tolerance=1e-4) is not None


HELD = [
    *[(model, words) for model in ("decoder", "gpt") for words in ("tp2", "pp2")],
    *[
        ("decoder", f"pp2:{name}")
        for name in ("gpipe", "interleaved", "zero-bubble", "zbv", "dualpipe-v")
    ],
    *[("decoder", "tp2+sp"), ("decoder", "tp2+recompute-full")],
]


@pytest.mark.slow
def test_ranks_hold_what_is_predicted() -> None:
    jobs = []
    for name, variant in HELD:
        model = f"{name}:hidden_size=128:layers=4:heads=4:vocabulary=1000:positions=64"
        plain = make_job(2, model, "none", "adamw")
        jobs.append(parse_variant(replace(plain, seq_len=64, micro_batch=4, grad_accum=2), variant))
    found = zip(*run_on_ranks(2, measure_all, jobs), strict=True)
    for job, measured in zip(jobs, found, strict=True):
        for rank, dynamic_bytes in enumerate(measured):
            pipeline_rank = rank if job.parallelism.pipeline > 1 else 0
            parts = estimate_divided(job, pipeline_rank, on_host=True)
            held = sum(parts[part] for part in ("parameters", "buffers", "optimizer state"))
            expected = held + dynamic_bytes
            assert sum(parts.values()) == pytest.approx(expected, rel=0.1), (job, rank)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_compiled_blocks_and_short_matmuls_train_so_too(precision: str, alone: Any) -> None:
    compiled = "+compiled" if precision == "fp32" else ""
    variants = [f"{words}{compiled}" for words in ("tp2", "tp2+sp", "pp2:interleaved")]
    jobs = [replace(make_job(2, GPT, variant), precision=precision) for variant in variants]
    expected = alone(replace(jobs[0], compiled=False))["losses"]
    found, _ = run_on_ranks(2, train_all, [(job, "") for job in jobs])
    for each in found:
        tolerance = 1e-6 if precision == "fp32" else 1e-3
        assert each["losses"] == pytest.approx(expected, rel=tolerance)
