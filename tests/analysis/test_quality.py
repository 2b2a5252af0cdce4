"""What training curves come to, with numbers that can be checked by hand; and whether the losses of
a job's variants agree."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from flopwatch.analysis.quality import Quality, as_dict, assess, compare_losses, find_step
from flopwatch.analysis.summary import summarize
from flopwatch.output.case_tables import make_sheets
from flopwatch.output.console import draw, fit
from flopwatch.output.training_tables import make_quality_sheets, make_rank_sheets
from flopwatch.records.record import Rank, Record
from tests.conftest import make_record

STEPS = [100.0, 200.0, 300.0, 400.0]


def trained(
    variant: str, step_ns: float, losses: list[float], steps: list[float] = STEPS, **changes: object
) -> Record:
    """A record whose steps all take the same time."""
    content: dict[str, object] = {
        "case_id": variant,
        "variant": variant,
        "baseline": "dense",
        "samples_ns": {"forward": [0.25 * step_ns] * 20, "backward": [0.75 * step_ns] * 20},
        "facts": {"parameters": 1.5e6, "tokens_per_step": 2048},
        "curves": {
            "step": steps,
            "tokens": [2048 * step for step in steps],
            "train_loss": losses,
            "validation_loss": losses,
        },
    }
    return make_record(**{**content, **changes})


DENSE = trained("dense", 10e6, [4.0, 3.0, 2.5, 2.0])


def assess_one(*records: Record) -> Quality:
    """Of the last of the records."""
    (group,) = assess(summarize(records))
    return group[-1]


def test_a_variant_that_learns_less_is_compared_at_the_loss_that_both_reach() -> None:
    quality = assess_one(DENSE, trained("fast", 5e6, [5.0, 4.0, 3.0, 2.5]))
    assert quality.final_loss == 2.5
    assert quality.loss_difference == 0.5
    assert quality.reaches_baseline is False
    assert quality.time_to_baseline_ns is None
    # Down to 2.5: dense at step 300, 10 ms each; fast at step 400, 5 ms each.
    assert quality.gain is not None
    assert quality.gain.value == pytest.approx(3.0 / 2.0)


def test_a_variant_that_learns_more_gets_there_between_two_points() -> None:
    quality = assess_one(DENSE, trained("better", 20e6, [3.0, 2.5, 1.5, 1.0]))
    assert quality.loss_difference == -1.0
    assert quality.reaches_baseline is True
    # 2.0 is half-way between steps 200 and 300.
    assert quality.time_to_baseline_ns is not None
    assert quality.time_to_baseline_ns.value == pytest.approx(250 * 20e6)
    assert quality.gain is not None
    assert quality.gain.value == pytest.approx(400 * 10e6 / (250 * 20e6))


def test_identical_curves_leave_the_speedup() -> None:
    quality = assess_one(DENSE, trained("twin", 8e6, [4.0, 3.0, 2.5, 2.0]))
    assert quality.loss_difference == 0
    assert quality.reaches_baseline is True
    assert quality.gain is not None
    assert quality.gain.value == pytest.approx(1.25)


def test_the_baseline_has_a_time_but_no_gain() -> None:
    quality = assess_one(DENSE)
    assert quality.time_to_baseline_ns is not None
    assert quality.time_to_baseline_ns.value == pytest.approx(400 * 10e6)
    assert (quality.loss_difference, quality.gain) == (None, None)


@pytest.mark.parametrize(
    ("losses", "target", "step"),
    [
        ([4.0, 2.0, 3.0, 2.5], 2.5, 175.0),  # its final loss, long before the end
        ([4.0, 3.5, 5.0, 2.5], 3.0, 380.0),  # straight from the bump
        ([3.0, 3.0, 3.0, 3.0], 3.0, 100.0),
        ([3.0, 2.0, 1.0, 0.5], 9.0, 100.0),  # there at the first point
        ([4.0, 3.0, 2.0, 1.0], 1.0, 400.0),
        ([4.0, 3.0, 2.0, 1.0], 0.5, None),
        ([], 1.0, None),
    ],
)
def test_a_loss_is_reached_when_it_is_first_reached(
    losses: list[float], target: float, step: float | None
) -> None:
    assert find_step(list(zip(STEPS, losses, strict=False)), target) == step


def test_intervals_are_those_of_the_step_times() -> None:
    scattered = [9e6, 10e6, 11e6, 10e6] * 5
    dense = trained("dense", 1, [4.0, 3.0, 2.5, 2.0], samples_ns={"call": scattered})
    fast = trained("fast", 5e6, [4.0, 3.5, 3.0, 2.5])
    slow, quality = assess(summarize([dense, fast]))[0]
    assert slow.time_to_baseline_ns is not None
    assert slow.time_to_baseline_ns.low == pytest.approx(400 * 9e6)
    assert slow.time_to_baseline_ns.high == pytest.approx(400 * 11e6)
    assert quality.gain is not None
    assert quality.gain.low == pytest.approx(0.75 * 9 / 5)
    assert quality.gain.value == pytest.approx(0.75 * 10 / 5)
    assert quality.gain.high == pytest.approx(0.75 * 11 / 5)


def test_too_few_samples_give_no_interval() -> None:
    few = {"rounds": [0, 1], "calls_per_sample": [1, 1]}
    dense = trained("dense", 1, [3.0, 2.0], samples_ns={"call": [4e6] * 2}, **few)
    quality = assess_one(dense, trained("a", 1, [3.0, 2.0], samples_ns={"call": [2e6] * 2}, **few))
    assert quality.gain is not None
    assert (quality.gain.value, quality.gain.low, quality.gain.high) == (2.0, None, None)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [trained("dense", 1e6, [], steps=[])],
        [make_record(case_id="dense", variant="dense", baseline="dense")],
        [make_record(case_id="dense", variant="dense", baseline="dense", status="crash")],
        [trained("dense", 1e6, [4.0, 3.0, 2.5, 2.0], run_id="another")],
    ],
    ids=["none", "empty curves", "no curves", "crashed", "another run"],
)
def test_without_a_baseline_there_is_a_loss_and_nothing_to_compare_it_with(
    others: list[Record],
) -> None:
    quality = assess_one(*others, trained("alone", 1e6, [4.0, 3.0]))
    assert quality.final_loss == 3.0
    assert quality.reaches_baseline is None
    assert (quality.loss_difference, quality.time_to_baseline_ns, quality.gain) == (None,) * 3


def test_a_baseline_without_curves_is_no_row() -> None:
    bare = make_record(case_id="dense", variant="dense", baseline="dense")
    assert assess(summarize([bare])) == []
    (group,) = assess(summarize([bare, trained("a", 1e6, [2.0])]))
    assert [quality.row.record.variant for quality in group] == ["a"]


def test_a_loss_that_is_there_before_the_first_step_has_no_gain() -> None:
    steps = [0.0, 100.0]
    dense = trained("dense", 1e6, [2.0, 2.0], steps=steps)
    assert assess_one(dense, trained("a", 1e6, [2.0, 2.0], steps=steps)).gain is None


def test_groups_stay_apart() -> None:
    other = trained("dense", 1e6, [9.0, 8.0], group_id="h", case_id="x", params={"size": 8})
    groups = assess(summarize([DENSE, other, trained("fast", 5e6, [5.0, 2.0])]))
    assert [[q.row.record.variant for q in group] for group in groups] == [
        ["dense", "fast"],
        ["dense"],
    ]


def test_the_table_is_exactly_this() -> None:
    rows = summarize(
        [
            DENSE,
            trained("fast", 5e6, [5.0, 4.0, 3.0, 2.5], facts={"parameters": 800_000}),
            trained("better", 20e6, [3.0, 2.5, 1.5, 1.0], conditions={"autocast": "bfloat16"}),
            trained("short", 5e6, [3.0, 2.5]),
        ]
    )
    (sheet,) = make_quality_sheets(rows)
    assert sheet.title == "demo size=4, loss"
    assert sheet.headings == [
        "variant", "parameters", "step time", "±", "loss",
        "vs dense", "time to dense's loss", "gain at equal loss",
    ]  # fmt: skip
    assert sheet.groups == [
        [
            ["dense", "1.50M", "10.0 ms", "±0.0 %", "2.000", "", "4.00 s", "baseline"],
            [
                "fast", "800k", "5.00 ms", "±0.0 %", "2.500", "+0.500", "not reached",
                "1.50x [1.50, 1.50]",
            ],
            [
                "better", "1.50M", "20.0 ms", "±0.0 %", "1.000", "−1.000", "5.00 s",
                "0.80x [0.80, 0.80], not comparable",
            ],
            [
                "short", "1.50M", "5.00 ms", "±0.0 %", "2.500", "+0.500", "not reached",
                "3.00x [3.00, 3.00]",
            ],
        ]
    ]  # fmt: skip
    assert sheet.remarks == ["short size=4: trained for 200 steps, others for 400"]


def test_the_table_fits_a_narrow_terminal() -> None:
    (sheet,) = make_quality_sheets(summarize([DENSE, trained("fast", 5e6, [5.0, 2.5])]))
    (narrow,) = fit(sheet, 80)
    assert narrow.headings[-4:] == [
        "loss",
        "vs dense",
        "time to dense's loss",
        "gain at equal loss",
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(draw(narrow))
    assert isinstance(console.file, io.StringIO)
    assert "…" not in console.file.getvalue()


def test_json_is_plain() -> None:
    content = as_dict(assess_one(DENSE, trained("fast", 5e6, [5.0, 4.0, 3.0, 2.5])))
    assert json.loads(json.dumps(content)) == {
        "variant": "fast",
        "parameters": 1.5e6,
        "step_ns": pytest.approx({"median": 5e6, "low": 5e6, "high": 5e6}),
        "steps": 400,
        "final_loss": 2.5,
        "loss_difference": 0.5,
        "reaches_baseline": False,
        "time_to_baseline_ns": None,
        "gain": pytest.approx({"median": 1.5, "low": 1.5, "high": 1.5}),
    }


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
