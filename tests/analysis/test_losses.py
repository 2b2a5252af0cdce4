"""Losses of a job's variants, compared."""

from __future__ import annotations

from typing import Any

from flopwatch.analysis.quality import compare_losses
from flopwatch.analysis.summary import summarize
from flopwatch.output.case_tables import make_sheets
from flopwatch.output.training_tables import make_rank_sheets
from flopwatch.records.record import Rank, Record
from tests.conftest import make_record

SAMPLES: dict[str, Any] = {
    "samples_ns": {"call": [8.0, 8.0]},
    "rounds": [0, 1],
    "calls_per_sample": [1, 1],
    "warmup_samples": 1,
}


def make_job(variant: str, losses: list[float], **changes: Any) -> Record:
    rank = Rank(samples_ns={"call": [8.0, 8.0]}, waiting_ns=[0.0, 1.0], transfer_ns=[0.0, 1.0])
    given = {"suite": "training", "group_id": "g", "run_id": "r", "baseline": "none", **SAMPLES}
    return make_record(
        **{**given, "case_id": variant, "variant": variant, "ranks": [rank, rank], **changes},
        curves={"loss": losses},
    )


def test_the_furthest_off_is_named() -> None:
    jobs = [
        make_job("none", [4.0, 2.0, 1.0]),
        make_job("ddp", [4.0, 2.0]),
        make_job("full", [4.0, 2.5]),
    ]
    found = compare_losses(summarize(jobs))
    assert found is not None
    assert (found.steps, found.first, found.last) == (2, 4.0, 2.0)
    assert (found.variant, found.deviation) == ("full", 0.25)
    (sheet,) = make_rank_sheets(summarize(jobs))
    assert "full is furthest off, by 25 %" in sheet.remarks[-1]


def test_equal_losses_are_said_to_be() -> None:
    jobs = [make_job("none", [4.0]), make_job("ddp", [4.0])]
    (sheet,) = make_rank_sheets(summarize(jobs))
    assert "all losses are equal" in sheet.remarks[-1]


def test_runs_are_not_mixed() -> None:
    """Another run may have had another seed, and so other texts."""
    jobs = [make_job("none", [4.0]), make_job("ddp", [3.0], run_id="another")]
    assert compare_losses(summarize(jobs)) is None


def test_each_baseline_has_a_table_of_its_own() -> None:
    jobs = [
        make_job("none", [4.0]),
        make_job("full", [4.0]),
        make_job("full", [4.0], run_id="later", baseline="full"),
        make_job("ddp", [4.0], run_id="later", baseline="full"),
    ]
    sheets = make_sheets(summarize(jobs))
    variants = [[cells[0] for cells in group] for sheet in sheets for group in sheet.groups]
    assert variants == [["none", "full"], ["full", "ddp"]]
