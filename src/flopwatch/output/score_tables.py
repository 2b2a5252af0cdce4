"""How good predictions are: of published jobs that were held out, and of one's own records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from flopwatch.output.prediction_tables import NS
from flopwatch.output.tables import Column, Sheet, lay_out, share_column
from flopwatch.output.units import format_time, plural
from flopwatch.prediction.calibration import Calibration
from flopwatch.prediction.fit import Fit, Found
from flopwatch.prediction.validation import STEP, Judged, Score, Tally

TOO_EFFICIENT = 1.3
"""Of the peak: what lies above cannot be a peak that was measured a little too low."""


def list_validation_sheets(scores: Sequence[Score]) -> list[Sheet]:
    columns: list[Column[Score]] = [
        Column("left out", lambda score: score.split, "word"),
        Column("table", lambda score: score.table, "word"),
        Column("jobs", lambda score: str(score.rows)),
        share_column("mean error", lambda score: score.mean_error),
        share_column("largest", lambda score: score.largest_error),
        share_column("in interval", lambda score: score.coverage),
    ]
    splits = list(dict.fromkeys(score.split for score in scores))
    groups = [[score for score in scores if score.split == split] for split in splits]
    return [
        Sheet(
            title="tokens/s of training jobs that the fit has not seen",
            conditions="published on A100; errors of predicted over measured tokens/s, less 1; "
            "90 % should be inside their interval",
            remarks=[],
            **lay_out(columns, groups),
        ),
    ]


def validation_as_dict(scores: Sequence[Score]) -> dict[str, Any]:
    return {"jobs": list(map(asdict, scores))}


def list_calibration_sheets(calibration: Calibration, fit: Fit) -> list[Sheet]:
    columns: list[Column[Found]] = [
        Column("parameter", lambda found: found.unknown.name, "word"),
        Column("value", lambda found: f"{found.value:.3g}", value=lambda found: found.value),
        Column("±", lambda found: f"{100 * found.error:.0f} %", value=lambda found: found.error),
        Column("expected", lambda found: f"{found.unknown.prior.expected:.3g}"),
        share_column("determined", lambda found: found.determined),
        Column("unit", lambda found: found.unknown.prior.unit, "word"),
    ]
    return [
        Sheet(
            title=f"calibrated by {plural(calibration.rows, 'record')}: a model that is not among "
            f"them is predicted within {100 * calibration.scatter:.0f} %, two times out of three",
            conditions="determined: how much of what was uncertain the records have settled; the "
            "rest is as expected",
            remarks=_warn_of_efficiencies(fit),
            **lay_out(columns, [sorted(fit.found, key=lambda found: -found.determined)]),
        )
    ]


def _warn_of_efficiencies(fit: Fit) -> list[str]:
    """More than the machine can do was seen: it can do more than its peaks say."""
    return [
        f"{found.unknown.name} is {found.value:.2g}, more than there is: the peaks are too low, as "
        "they are if other work ran meanwhile; measure them again with `flopwatch peaks`"
        for found in fit.found
        if found.unknown.name.endswith("_efficiency") and found.value > TOO_EFFICIENT
    ]


def calibration_as_dict(calibration: Calibration, fit: Fit) -> dict[str, Any]:
    return {
        **asdict(calibration),
        "found": [
            {
                "name": found.unknown.name,
                "value": found.value,
                "error": found.error,
                "expected": found.unknown.prior.expected,
                "determined": found.determined,
            }
            for found in fit.found
        ],
    }


def list_scorecard_sheets(judged: Sequence[Judged], tallies: Sequence[Tally]) -> list[Sheet]:
    overview: list[Column[Tally]] = [
        Column("of", lambda tally: tally.name, "word"),
        Column("records", lambda tally: str(tally.rows)),
        share_column("mean error", lambda tally: tally.mean_error),
        Column("bias", lambda tally: _format_signed(tally.bias), value=lambda tally: tally.bias),
        share_column("largest", lambda tally: tally.largest_error),
        share_column("in interval", lambda tally: tally.inside),
    ]
    columns: list[Column[Judged]] = [
        Column("case", _name, "word"),
        Column("taken", lambda each: each.record.measured_at.partition("T")[0], "detail"),
        Column("predicted", lambda each: format_time(each.predicted_s * NS)),
        Column("measured", lambda each: format_time(each.measured_s * NS)),
        Column("error", lambda each: _format_signed(each.errors[STEP])),
        Column("inside", lambda each: "yes" if each.is_inside else "no", "word"),
    ]
    return [
        Sheet(
            title="predictions and measurements",
            conditions="errors of times: predicted over measured, less 1",
            remarks=[],
            **lay_out(columns, [judged]),
        ),
        Sheet(
            title="in all",
            conditions="bias: above 0 where predictions are too slow; phases have no interval",
            remarks=[],
            **lay_out(overview, [tallies]),
        ),
    ]


def scorecard_as_dict(judged: Sequence[Judged], tallies: Sequence[Tally]) -> dict[str, Any]:
    return {
        "records": [
            {
                "case_id": each.record.case_id,
                "suite": each.record.suite,
                "variant": each.record.variant,
                "params": each.record.params,
                "measured_at": each.record.measured_at,
                "predicted_s": each.predicted_s,
                "measured_s": each.measured_s,
                "is_inside": each.is_inside,
                "errors": each.errors,
            }
            for each in judged
        ],
        "tallies": list(map(asdict, tallies)),
    }


def _name(judged: Judged) -> str:
    record = judged.record
    model = record.params.get("model")
    return f"{record.suite} {model} {record.variant}"


def _format_signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")
