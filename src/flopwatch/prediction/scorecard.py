"""How good the predictions were that records carry: made before each was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.statistics import estimate_total_ns, median
from flopwatch.errors import UsageError
from flopwatch.records.record import Record

STEP = "step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A record and the prediction that it carries."""

    record: Record
    predicted_s: float
    measured_s: float
    is_inside: bool
    """Whether what was measured lies inside the prediction's interval."""
    errors: dict[str, float]
    """Of times, predicted over measured, less 1: of the step, and of its phases where it has
    them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Over several records."""

    name: str
    rows: int
    mean_error: float
    """Of magnitudes."""
    bias: float
    """The mean with signs: above 0 where predictions are too slow."""
    largest_error: float
    inside: float | None
    """Share inside its interval; None for phases, which have none."""


def judge(record: Record) -> Judged | None:
    """None where it carries no prediction that can be read, or was not measured."""
    prediction = record.prediction
    if prediction is None or record.status != "ok" or len(record.rounds) <= record.warmup_samples:
        return None
    predicted_s, low_s, high_s = (_read(prediction, key) for key in ("step_s", "low_s", "high_s"))
    if predicted_s is None or low_s is None or high_s is None:
        return None
    measured_s = estimate_total_ns(record).value / 1e9
    return Judged(
        record=record,
        predicted_s=predicted_s,
        measured_s=measured_s,
        is_inside=low_s <= measured_s <= high_s,
        errors={STEP: predicted_s / measured_s - 1, **_find_phase_errors(record, prediction)},
    )


def _find_phase_errors(record: Record, prediction: dict[str, Any]) -> dict[str, float]:
    phases = prediction.get("phases_s")
    if not isinstance(phases, dict):
        return {}
    errors = {}
    for phase, times_ns in record.samples_ns.items():
        predicted_s = _read(phases, phase)
        if predicted_s is not None:
            measured_s = median(times_ns[record.warmup_samples :]) / 1e9
            errors[phase] = predicted_s / measured_s - 1
    return errors


def _read(content: dict[str, Any], key: str) -> float | None:
    """A record is untrusted."""
    value = content.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < 1e9 else None


def judge_all(records: Sequence[Record]) -> list[Judged]:
    judged = [each for each in map(judge, records) if each is not None]
    if not judged:
        raise UsageError(
            "no record carries a prediction; calibrate this machine (`flopwatch peaks`, `flopwatch "
            "run steps`, `flopwatch calibrate`), and later runs of steps and training will"
        )
    return judged


def tally(judged: Sequence[Judged]) -> list[Tally]:
    """Over all, by phase, and day by day, where there are several."""
    names = list(dict.fromkeys(name for each in judged for name in each.errors))
    days = list(dict.fromkeys(_find_day(each) for each in judged))
    return [
        *(_count(name, [each for each in judged if name in each.errors], name) for name in names),
        *(
            _count(day, [each for each in judged if _find_day(each) == day], STEP)
            for day in days
            if len(days) > 1
        ),
    ]


def _find_day(judged: Judged) -> str:
    return judged.record.measured_at.partition("T")[0]


def _count(name: str, judged: Sequence[Judged], key: str) -> Tally:
    errors = [each.errors[key] for each in judged]
    return Tally(
        name=name,
        rows=len(errors),
        mean_error=sum(map(abs, errors)) / len(errors),
        bias=sum(errors) / len(errors),
        largest_error=max(map(abs, errors)),
        inside=sum(each.is_inside for each in judged) / len(judged) if key == STEP else None,
    )
