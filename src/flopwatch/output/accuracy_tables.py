"""How good predictions are: of published jobs that were held out, of a calibration, of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import format_signed_share, plural
from flopwatch.prediction.calibration import Calibration
from flopwatch.prediction.fit import Fit, Found
from flopwatch.prediction.scorecard import STEP, Judged, Tally
from flopwatch.prediction.validation import Score

TOO_EFFICIENT = 1.3
"""Of the peak: what lies above cannot be a peak that was measured a little too low."""


def list_validation_sheets(scores: Sequence[Score]) -> list[Sheet]:
    columns: list[Column[Score]] = [
        Column("left out", lambda score: score.split, "word"),
        Column("source", lambda score: score.table, "word"),
        number("jobs", "integer", lambda score: score.rows),
        number("mean error", "share", lambda score: score.mean_error),
        number("median", "share", lambda score: score.median_error),
        number("largest", "share", lambda score: score.largest_error),
        number("in interval", "share", lambda score: score.coverage),
        _optional("rank correlation", lambda score: score.rank_correlation),
        _optional("share of the best", lambda score: score.best_share),
        number("constant MFU", "share", lambda score: score.constant_mfu_error),
        number("FLOPs + bandwidth", "share", lambda score: score.roofline_error),
    ]
    splits = dict.fromkeys(score.split for score in scores)
    return [
        Sheet(
            title="tokens/s of training jobs that the fit has not seen",
            columns=columns,
            items=[[score for score in scores if score.split == split] for split in splits],
            conditions="published on A100 and V100; errors of predicted over measured tokens/s, "
            "less 1; 90 % should be inside their interval. Constant MFU, the best for each source "
            "in hindsight, and FLOPs + bandwidth, with every efficiency at 1, are the mean errors "
            "of baselines",
            remarks=[_describe_split(scores, split) for split in splits],
        ),
    ]


def _optional(name: str, find: Callable[[Score], float | None]) -> Column[Score]:
    def show(score: Score) -> str:
        value = find(score)
        return "" if value is None else f"{value:.2f}"

    return Column(name, show, value=find)


def _describe_split(scores: Sequence[Score], split: str) -> str:
    """Over the sources, of which a part of one does not count again."""
    own = [score for score in scores if score.split == split and ", " not in score.table]
    mean = sum(score.mean_error for score in own) / len(own)
    return f"{split}: {100 * mean:.1f} % mean error over {plural(len(own), 'source')}"


def validation_as_dict(scores: Sequence[Score]) -> dict[str, Any]:
    return {"jobs": list(map(asdict, scores))}


def list_calibration_sheets(calibration: Calibration, fit: Fit) -> list[Sheet]:
    columns: list[Column[Found]] = [
        Column("parameter", lambda found: found.unknown.name, "word"),
        Column("value", lambda found: f"{found.value:.3g}", value=lambda found: found.value),
        Column("±", lambda found: f"{100 * found.error:.0f} %", value=lambda found: found.error),
        Column("expected", lambda found: f"{found.unknown.prior.expected:.3g}"),
        number("determined", "share", lambda found: found.determined),
        Column("unit", lambda found: found.unknown.prior.unit, "word"),
    ]
    return [
        Sheet(
            title=f"calibrated by {plural(calibration.rows, 'record')}: a model that is not among "
            f"them is predicted within {100 * calibration.scatter:.0f} %, two times out of three",
            columns=columns,
            items=[sorted(fit.found, key=lambda found: -found.determined)],
            conditions="determined: how much of what was uncertain the records have settled; the "
            "rest is as expected",
            remarks=_warn_of_efficiencies(fit),
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
    columns: list[Column[Judged]] = [
        Column("case", _name_case, "word"),
        Column("taken", lambda each: each.record.measured_at.partition("T")[0], "detail"),
        number("predicted", "s", lambda each: each.predicted_s),
        number("measured", "s", lambda each: each.measured_s),
        Column("error", lambda each: format_signed_share(each.errors[STEP])),
        Column("inside", lambda each: "yes" if each.is_inside else "no", "word"),
    ]
    overview: list[Column[Tally]] = [
        Column("of", lambda tally: tally.name, "word"),
        number("records", "integer", lambda tally: tally.rows),
        number("mean error", "share", lambda tally: tally.mean_error),
        Column("bias", lambda t: format_signed_share(t.bias), value=lambda tally: tally.bias),
        number("largest", "share", lambda tally: tally.largest_error),
        number("in interval", "share", lambda tally: tally.inside),
    ]
    return [
        Sheet(
            title="predictions and measurements",
            columns=columns,
            items=[judged],
            conditions="errors of times: predicted over measured, less 1",
        ),
        Sheet(
            title="in all",
            columns=overview,
            items=[tallies],
            conditions="bias: above 0 where predictions are too slow; phases have no interval",
        ),
    ]


def _name_case(judged: Judged) -> str:
    record = judged.record
    return f"{record.suite} {record.params.get('model')} {record.variant}"


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
