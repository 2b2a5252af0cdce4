"""What goes together in a job that is run, and what is refused with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.combinations import RULES, require_combination, require_divisible
from flopwatch.jobs.parallelism import SCHEDULES, Parallelism, divide_layers, name_stages
from flopwatch.jobs.training_job import TrainingJob, parse_variant

SMALL = "decoder:hidden_size=64:layers=4:heads=4:vocabulary=100"
EXPERTS = f"{SMALL}:experts=4:active_experts=2"
DOCUMENT = Path(__file__).parents[2] / "docs" / "training.md"


def make_job(variant: str = "none", ranks: int = 4, **changes: Any) -> TrainingJob:
    content: dict[str, Any] = {"model": SMALL, "seq_len": 16, "precision": "fp32"}
    job = TrainingJob(**{**content, **changes}, parallelism=Parallelism(data=ranks))
    return parse_variant(job, variant)


@pytest.mark.parametrize(
    ("ranks", "variant", "words"),
    [
        (3, "tp2", "tp=2 takes a multiple of 2 ranks, and there are 3"),
        (6, "tp2+pp2", "tp=2 x pp=2 takes a multiple of 4 ranks, and there are 6"),
        (3, "tp3", "tp=3 does not divide the 4 heads"),
        (8, "pp8", "has 4 layers, and 8 stages of a pipeline need at least one each"),
        (2, "pp2:interleaved:3", "has 4 layers, and 6 stages"),
        (2, "pp2:interleaved:1", "takes 2 or more virtual stages on each rank, and not 1"),
        (2, "pp2:zbv:3", "takes 2 virtual stages on each rank, and not 3"),
        (2, "pp2:gpipe:2", "takes 1 virtual stages on each rank, and not 2"),
        (2, "pp2:dualpipe-v", "needs at least 4 micro-batches a step .*, and there are 2"),
        (2, "ep2", "ep=2 divides experts, and .* has none"),
    ],
)
def test_numbers_that_do_not_go_together(ranks: int, variant: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        require_divisible(make_job(variant, ranks))


def test_a_pipeline_needs_micro_batches() -> None:
    job = make_job("pp4").divide(data=1)
    few = TrainingJob(SMALL, 16, grad_accum=3, parallelism=job.parallelism)
    with pytest.raises(UsageError, match="needs at least 4 micro-batches .*, and there are 3"):
        require_divisible(few)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_runs_with_its_fewest_virtual_stages(schedule: str) -> None:
    job = make_job(f"pp2:{schedule}", 2, grad_accum=2)
    require_divisible(job)
    require_combination(job, on_host=True)
    stages = [stage for rank in range(2) for stage in job.parallelism.list_stages(rank)]
    assert sorted(stages) == list(range(job.parallelism.stages))


REFUSED = {
    "tp x swapped layers": ("tp2+dyad:auto:4", {}),
    "tp, pp or cp x models of transformers": ("tp2", {"model": f"llama{SMALL[7:]}"}),
    "zero-bubble schedules x ddp": ("ddp+pp2:zbv", {}),
    "zero-bubble schedules x selective recomputation": ("pp2:zbv+recompute-selective", {}),
    "zero-bubble schedules x compiled": ("pp2:zero-bubble+compiled", {}),
    "ddp x tp x recomputation": ("ddp+tp2+recompute-full", {}),
    "zero1 x tp or pp": ("zero1+tp2", {}),
    "ep x models of transformers": ("ep2", {"model": f"mixtral{SMALL[7:]}"}),
    "ep x hybrid or zero1": ("hybrid+ep2", {"model": EXPERTS}),
    "ep x shards x selective recomputation": ("full+ep2+recompute-selective", {"model": EXPERTS}),
    "ep x compiled x recomputation": ("ep2+compiled+recompute-full", {"model": EXPERTS}),
    "tp or pp x experts": ("pp2", {"model": EXPERTS}),
}


def test_what_is_not_computed_has_a_reason() -> None:
    assert list(REFUSED) == [rule.name for rule in RULES]
    for rule in RULES:
        variant, changes = REFUSED[rule.name]
        with pytest.raises(Unsupported) as caught:
            require_combination(make_job(variant, **changes), on_host=True)
        assert str(caught.value) == rule.reason


def test_the_documentation_lists_these_rules() -> None:
    table = DOCUMENT.read_text().partition("<!-- combinations -->")[2].split("\n\n")[1]
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in table.splitlines()]
    assert rows[2:] == [(rule.name, rule.reason) for rule in RULES]


@pytest.mark.parametrize(("on_host", "words"), [(True, "for a CPU"), (False, "on a GPU")])
def test_context_parallelism_is_not_run(on_host: bool, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        require_combination(make_job("cp2"), on_host=on_host)


def test_a_step_stays_the_same_however_ranks_divide_it() -> None:
    plain = make_job(grad_accum=2)
    for variant in ("full", "tp2", "pp4", "tp2+pp2", "full+tp2+sp"):
        job = make_job(variant, grad_accum=2)
        assert job.ranks == 4
        assert (job.global_batch, job.tokens_per_step) == (plain.global_batch, 8 * 16)
        assert job.micro_batches == plain.micro_batches


def test_layers_are_divided_once() -> None:
    for stages in range(1, 9):
        parts = divide_layers(8, stages)
        assert [layer for part in parts for layer in part] == list(range(8))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert sizes[-1] == min(sizes)


def test_messages_name_stages() -> None:
    split = Parallelism(data=2, tensor=2, pipeline=2, virtual_stages=2, schedule="zbv")
    assert name_stages("rank 0: out of memory", split) == (
        "rank 0 (stages 0 and 3 of 4): out of memory"
    )
    assert name_stages("rank 7 waits", split) == "rank 7 (stages 1 and 2 of 4) waits"
    assert name_stages("rank 7 waits", Parallelism(data=8)) == "rank 7 waits"
