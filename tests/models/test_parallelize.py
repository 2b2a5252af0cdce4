"""All ways to share a model and to divide a batch walk the same path as one process does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from flopwatch.devices.cpu import CpuClock
from flopwatch.env import read_ranks_per_node
from flopwatch.errors import Unsupported
from flopwatch.jobs.parallelism import Parallelism, count_shards
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models import parallelize
from flopwatch.models.parallelize import fill_buckets
from flopwatch.models.training_loop import make_reference, make_workload
from flopwatch.worker.agreement import compare, gather
from flopwatch.worker.sampling import run_once
from tests.rank_tools import run_on_ranks

TINY = "gpt:hidden_size=32:layers=2:heads=4:vocabulary=101:positions=16"
GLOBAL_BATCH, STEPS = 8, 3
pytestmark = pytest.mark.xdist_group("parallelize")  # they share what takes long to make

WAYS = ["none", "ddp", "full", "zero2"]
AGAIN = ["", "+recompute-full", "+recompute-selective"]
GRID = list(itertools.product(WAYS, AGAIN, [1, 4]))


def make_job(ranks: int, grad_accum: int = 1, variant: str = "none", **changes: Any) -> TrainingJob:
    content: dict[str, Any] = {
        "model": TINY,
        "seq_len": 16,
        "micro_batch": GLOBAL_BATCH // ranks // grad_accum,
        "grad_accum": grad_accum,
        "precision": "fp32",
        "parallelism": Parallelism(data=ranks),
    }
    return parse_variant(TrainingJob(**{**content, **changes}), variant)


def train(job: TrainingJob, steps: int = STEPS) -> dict[str, Any]:
    """Losses, and what else can be seen of a few steps."""
    torch.manual_seed(0)
    workload = make_workload(job, "cpu")
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


def train_all(jobs: list[TrainingJob]) -> list[dict[str, Any]]:
    return list(map(train, jobs))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As on ranks: so little work is not worth waking others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone() -> list[float]:
    losses: list[float] = train(make_job(1))["losses"]
    return losses


@pytest.fixture(scope="module")
def on_two() -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """By sharding, recomputation and gradient accumulation: what both ranks give."""
    jobs = [make_job(2, number, way + again) for way, again, number in GRID]
    found = run_on_ranks(2, train_all, jobs)
    return dict(zip(GRID, map(list, zip(*found, strict=True)), strict=True))


@pytest.mark.parametrize(("way", "again", "grad_accum"), GRID)
def test_losses_are_those_of_one_process(
    way: str, again: str, grad_accum: int, alone: list[float], on_two: Any
) -> None:
    first, second = on_two[way, again, grad_accum]
    assert first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(("way", "again", "grad_accum"), GRID)
def test_gradients_are_those_of_the_reference(
    way: str, again: str, grad_accum: int, on_two: Any
) -> None:
    torch.manual_seed(0)
    job = make_job(2, grad_accum, way + again)
    expected = gather(make_reference(job, "cpu"), CpuClock()).values
    values = on_two[way, again, grad_accum][0]["values"]
    assert compare(values, expected, against="the reference", tolerance=1e-4) is not None
    assert len(values) == 2 + 2 * 12 + 2 + 1  # embedding, positions, blocks, norm, loss


@pytest.mark.parametrize("grad_accum", [1, 4])
def test_collectives_are_noted(grad_accum: int, on_two: Any) -> None:
    """True: it stopped the rank. Of two blocks and the rest, each is gathered and scattered."""
    expected = {
        "none": [True],
        "ddp": [True],
        "full": (3 + 2 + 3) * grad_accum * [True],
        "zero2": (3 + 3) * grad_accum * [True],
    }
    for way, visits in expected.items():
        first, second = on_two[way, "", grad_accum]
        assert first["visits"] == second["visits"] == [visits] * (STEPS - 1), way


def train_beside(jobs: list[TrainingJob]) -> list[dict[str, Any]]:
    """As on an accelerator, where collectives run beside the computation; on CPUs they have ended
    when they return."""
    parallelize.is_host = lambda device: False  # of this process, which ends with this
    found = []
    for job in jobs:
        torch.manual_seed(0)
        workload = make_workload(job, "cpu")
        assert workload.journal is not None
        stops = []
        for _ in range(STEPS):
            workload.journal.clear()
            run_once(workload)
            stops.append([visit.arrived >= visit.left for visit in workload.journal.visits])
        assert workload.curves is not None
        losses = [point["loss"] for point in workload.curves()]
        found.append({"losses": losses, "stops": stops, "notes": workload.notes})
    return found


def test_what_computes_meets_every_collective_that_ran_beside_it(alone: list[float]) -> None:
    """Every block's parameters before it is computed, in both passes, and every block's gradients
    before the next ones are reduced, or in the end: each once."""
    numbers = {"full": 3 + 2 + 3, "zero2": 3 + 3, "full+recompute-full": 3 + 2 + 3}
    jobs = [make_job(2, number, way) for way in numbers for number in (1, 4)]
    for job, each in zip(jobs, run_on_ranks(2, train_beside, jobs)[1], strict=True):
        assert each["losses"] == pytest.approx(alone, rel=1e-5)
        way = job.sharding + ("" if job.recompute == "none" else f"+recompute-{job.recompute}")
        # All had ended before: nobody was stopped.
        assert each["stops"] == [[True] * numbers[way] * job.grad_accum] * STEPS
        assert "by events" in each["notes"][0]


@pytest.mark.slow
def test_hybrid_shards_meet_the_averages_between_groups(alone: list[float]) -> None:
    jobs = [make_job(4, number, "hybrid") for number in (1, 2)]
    for job, each in zip(jobs, run_on_ranks(4, train_beside, jobs)[3], strict=True):
        assert each["losses"] == pytest.approx(alone, rel=1e-5)
        assert each["stops"] == [[True] * (3 + 2 + 3) * job.grad_accum] * STEPS


DECODER = "decoder:hidden_size=32:layers=2:heads=4:vocabulary=101"
OTHERS = {
    "another architecture": ({"model": DECODER}, "full+recompute-selective"),
    "of transformers": ({"model": f"qwen2{DECODER[7:]}"}, "full+recompute-full"),
    "plain attention": ({}, "ddp+plain-attention"),
    "swapped layers": ({}, "full+dyad:auto:4@linear"),
    "in int8": ({}, "zero2+switchback:global+recompute-full"),
    "sgd": ({"optimizer": "sgd"}, "full"),
    "an operation at a time": ({"optimizer": "adamw-unfused"}, "full"),
    "short matmuls": ({"precision": "bf16-mixed"}, "full"),
    "short matmuls, whole": ({"precision": "bf16-mixed"}, "ddp"),
    "short numbers": ({"precision": "bf16"}, "full+recompute-selective"),
}
TOLERANCES = {"fp32": 1e-5, "bf16-mixed": 2e-3, "bf16": 5e-3}


@pytest.fixture(scope="module")
def others_on_two() -> dict[str, dict[str, Any]]:
    jobs = [make_job(2, variant=variant, **changes) for changes, variant in OTHERS.values()]
    found, _ = run_on_ranks(2, train_all, jobs)
    return dict(zip(OTHERS, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_models_and_precisions_do_too(name: str, others_on_two: Any) -> None:
    changes, variant = OTHERS[name]
    words = [word for word in variant.split("+") if ":" in word]  # other layers are no detail
    alone = train(make_job(1, variant="+".join(["none", *words]), **changes))
    tolerance = TOLERANCES[str(changes.get("precision", "fp32"))]
    assert others_on_two[name]["losses"] == pytest.approx(alone["losses"], rel=tolerance)


def test_one_rank_needs_nobody(alone: list[float]) -> None:
    larger = make_job(1, variant="ddp", model="gpt:hidden_size=128:layers=4:vocabulary=500")
    jobs = [*(make_job(1, variant=way) for way in WAYS), larger]
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
    ways = ["none", "ddp", "full+recompute-selective"]
    jobs = [make_job(2, variant=f"{way}+compiled") for way in ways]
    found, _ = run_on_ranks(2, train_all, jobs)
    assert len(found) == len(ways)
    for each in found:
        assert each["losses"] == pytest.approx(alone, rel=1e-5)
        assert each["facts"]["compile_s"] > 0
        assert each["facts"]["graphs"] == 1  # of both blocks


@pytest.mark.slow
def test_hybrid_shards_do_too(alone: list[float]) -> None:
    jobs = [make_job(4, number, "hybrid" + again) for number in (1, 2) for again in AGAIN]
    for each, job in zip(run_on_ranks(4, train_all, jobs)[3], jobs, strict=True):
        assert each["losses"] == pytest.approx(alone, rel=1e-5)
        # Of two blocks and the rest: gathered, scattered, and averaged in the end.
        number = (3 + 2 + 3) * job.grad_accum + 3
        assert each["visits"] == [[True] * number] * (STEPS - 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_hybrid_shards_need_groups(ranks: int) -> None:
    with pytest.raises(Unsupported, match=f"and {ranks} ranks are not such groups; take 4"):
        count_shards("hybrid", ranks, ranks)


def test_hybrid_shards_lie_on_one_node() -> None:
    assert read_ranks_per_node(8, {}) == 8
    assert count_shards("hybrid", 8, 8) == 4
    assert count_shards("hybrid", 8, read_ranks_per_node(8, {"LOCAL_WORLD_SIZE": "2"})) == 2
