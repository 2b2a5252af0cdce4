"""All ways to share a model and to divide a batch walk the same path as one process does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from flopwatch.jobs.variants import count_on_machine, count_shards, parse_training_mode
from torch import nn

from flopwatch.devices.clock import CpuClock
from flopwatch.errors import Unsupported
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.models.parallelize import fill_buckets
from flopwatch.models.training_loop import TrainingJob, make_reference, make_workload
from flopwatch.worker.agreement import compare, gather
from flopwatch.worker.sampling import run_once
from tests.rank_tools import run_on_ranks

TINY = "gpt:hidden_size=32:layers=2:heads=4:vocabulary=101:positions=16"
GLOBAL_BATCH, STEPS = 8, 3
WAYS = ["plain", "ddp", "full-shard", "grad-op-shard"]
AGAIN = ["", "+checkpointed", "+selective"]
GRID = list(itertools.product(WAYS, AGAIN, [1, 4]))


def make_job(ranks: int, accumulation: int = 1, **changes: Any) -> TrainingJob:
    content: dict[str, Any] = {
        "shape": find_shape(changes.pop("model", TINY)),
        "context": 16,
        "ranks": ranks,
        "micro_batch": GLOBAL_BATCH // ranks // accumulation,
        "accumulation": accumulation,
        "precision": "fp32",
        "optimizer": "adamw",
        "device": "cpu",
    }
    return TrainingJob(**{**content, **changes})


def train(job: TrainingJob, variant: str, steps: int = STEPS) -> dict[str, Any]:
    """Losses, and what else can be seen of a few steps."""
    torch.manual_seed(0)
    workload = make_workload(job, parse_training_mode(variant))
    first = gather(workload, CpuClock())
    visits = []
    for _ in range(steps - 1):
        assert workload.journal is not None
        workload.journal.clear()
        run_once(workload)
        visits.append([visit.left is not None for visit in workload.journal.visits])
    assert workload.curves is not None
    return {
        "losses": [point["loss"] for point in workload.curves()],
        "values": first.values,
        "visits": visits,
        "facts": workload.list_facts(),
    }


def train_all(jobs: list[tuple[TrainingJob, str]]) -> list[dict[str, Any]]:
    return [train(job, variant) for job, variant in jobs]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As on ranks: so little work is not worth waking others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone() -> list[float]:
    losses: list[float] = train(make_job(1), "plain")["losses"]
    return losses


@pytest.fixture(scope="module")
def on_two() -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """By sharding, what is computed again, and accumulation: what both ranks give."""
    jobs = [(make_job(2, number), way + again) for way, again, number in GRID]
    found = run_on_ranks(2, train_all, jobs)
    return dict(zip(GRID, map(list, zip(*found, strict=True)), strict=True))


@pytest.mark.parametrize(("way", "again", "accumulation"), GRID)
def test_losses_are_those_of_one_process(
    way: str, again: str, accumulation: int, alone: list[float], on_two: Any
) -> None:
    first, second = on_two[way, again, accumulation]
    assert first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(("way", "again", "accumulation"), GRID)
def test_gradients_are_those_of_the_reference(
    way: str, again: str, accumulation: int, on_two: Any
) -> None:
    torch.manual_seed(0)
    job, mode = make_job(2, accumulation), parse_training_mode(way + again)
    expected = gather(make_reference(job, mode), CpuClock()).values
    values = on_two[way, again, accumulation][0]["values"]
    assert compare(values, expected, against="the reference", tolerance=1e-4) is not None
    assert len(values) == 2 + 2 * 12 + 2 + 1  # embedding, positions, blocks, norm, loss


@pytest.mark.parametrize("accumulation", [1, 4])
def test_collectives_are_noted(accumulation: int, on_two: Any) -> None:
    """True: it stopped the rank. Of two blocks and the rest, each is gathered and scattered."""
    expected = {
        "plain": [True],
        "ddp": [True],
        "full-shard": (3 + 2 + 3) * accumulation * [True],
        "grad-op-shard": (3 + 3) * accumulation * [True],
    }
    for way, visits in expected.items():
        first, second = on_two[way, "", accumulation]
        assert first["visits"] == second["visits"] == [visits] * (STEPS - 1), way


DECODER = "decoder:hidden_size=32:layers=2:heads=4:vocabulary=101"
OTHERS = {
    "another architecture": ({"model": DECODER}, "full-shard+selective"),
    "of transformers": ({"model": f"qwen2{DECODER[7:]}"}, "full-shard+checkpointed"),
    "plain attention": ({}, "ddp+plain-attention"),
    "exchanged layers": ({}, "full-shard+dyad:auto:4@linear"),
    "in int8": ({}, "grad-op-shard+switchback:global+checkpointed"),
    "sgd": ({"optimizer": "sgd"}, "full-shard"),
    "an operation at a time": ({"optimizer": "adamw-unfused"}, "full-shard"),
    "short products": ({"precision": "bf16-mixed"}, "full-shard"),
    "short products, whole": ({"precision": "bf16-mixed"}, "ddp"),
    "short numbers": ({"precision": "bf16"}, "full-shard+selective"),
}
TOLERANCES = {"fp32": 1e-5, "bf16-mixed": 2e-3, "bf16": 5e-3}


@pytest.fixture(scope="module")
def others_on_two() -> dict[str, dict[str, Any]]:
    jobs = [(make_job(2, **changes), variant) for changes, variant in OTHERS.values()]
    found, _ = run_on_ranks(2, train_all, jobs)
    return dict(zip(OTHERS, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_models_and_precisions_do_too(name: str, others_on_two: Any) -> None:
    changes, variant = OTHERS[name]
    words = [word for word in variant.split("+") if ":" in word]  # other layers are no detail
    alone = train(make_job(1, **changes), "+".join(["plain", *words]))
    tolerance = TOLERANCES[str(changes.get("precision", "fp32"))]
    assert others_on_two[name]["losses"] == pytest.approx(alone["losses"], rel=tolerance)


def test_one_rank_needs_nobody(alone: list[float]) -> None:
    larger = make_job(1, model="gpt:hidden_size=128:layers=4:vocabulary=500")
    jobs = [*((make_job(1), way) for way in WAYS), (larger, "ddp")]
    ((*found, last),) = run_on_ranks(1, train_all, jobs)
    for each in found:
        assert each["losses"] == pytest.approx(alone, rel=1e-5)
    # DDP asks for averages all the same; of several buckets, only the last one stops the rank.
    assert last["visits"] == [[False, True]] * (STEPS - 1)


def test_gradients_travel_in_buckets() -> None:
    with torch.device("meta"):
        sizes = [3_000_000, 2_000_000, 5_000_000, 9_000_000, 10]
        parameters = [nn.Parameter(torch.empty(size)) for size in sizes]
        parameters.append(nn.Parameter(torch.empty(10, dtype=torch.bfloat16)))
    numbers = [[p.numel() for p in bucket] for bucket in fill_buckets(parameters)]
    assert numbers == [[10], [10], [9_000_000], [5_000_000], [2_000_000, 3_000_000]]


@pytest.mark.slow
def test_compiled_blocks_do_too(alone: list[float]) -> None:
    ways = ["plain", "ddp", "full-shard+selective"]
    found, _ = run_on_ranks(2, train_all, [(make_job(2), f"{way}+compiled") for way in ways])
    assert len(found) == len(ways)
    for each in found:
        assert each["losses"] == pytest.approx(alone, rel=1e-5)
        assert each["facts"]["compile_s"] > 0
        assert each["facts"]["graphs"] == 1  # of both blocks


@pytest.mark.slow
def test_hybrid_shards_do_too(alone: list[float]) -> None:
    jobs = [(make_job(4, number), "hybrid-shard" + again) for number in (1, 2) for again in AGAIN]
    for each, (job, _) in zip(run_on_ranks(4, train_all, jobs)[3], jobs, strict=True):
        assert each["losses"] == pytest.approx(alone, rel=1e-5)
        # Of two blocks and the rest: gathered, scattered, and averaged in the end.
        number = (3 + 2 + 3) * job.accumulation + 3
        assert each["visits"] == [[True] * number] * (STEPS - 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_hybrid_shards_need_groups(ranks: int) -> None:
    with pytest.raises(Unsupported, match=f"and {ranks} ranks are not such groups; take 4"):
        count_shards("hybrid-shard", ranks, ranks)


def test_hybrid_shards_lie_on_one_machine() -> None:
    assert count_on_machine(8, {}) == 8
    assert count_shards("hybrid-shard", 8, 8) == 4
    assert count_shards("hybrid-shard", 8, count_on_machine(8, {"LOCAL_WORLD_SIZE": "2"})) == 2
