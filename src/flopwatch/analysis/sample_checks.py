"""Doubts that the samples themselves raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from flopwatch.analysis.findings import LEAST_CHANGE, Case, Finding
from flopwatch.analysis.modes import find_modes
from flopwatch.analysis.statistics import (
    Estimate,
    effective_count,
    estimate_median,
    fewest_samples,
)
from flopwatch.analysis.trend import Trend

CHANCE = 0.001
"""Of all trends that are told, so large a part may be noise (Benjamini and Hochberg)."""
SETTLED_SHARE = 0.34
"""Where no more of a fall comes after the first third of the samples, that was warm-up."""
ROUNDING = 1.05
"""What was sampled until it was precise is not accused of missing that by a hair."""

STOPS = {
    "budget": "the time budget was spent",
    "stalled": "more rounds no longer helped",
    "interrupted": "it was interrupted",
}

Where = Literal["time", "speedup"]


def find_unsteady(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        record = case.record
        if record.steady is False and case.totals_ns:
            yield Finding(
                record=record,
                fact=f"no steady state in {record.warmup_samples} warm-up samples; "
                f"{len(case.totals_ns)} were measured all the same",
                size=record.warmup_samples,
            )


def find_unfinished_warmups(cases: Sequence[Case]) -> Iterator[Finding]:
    for case, trend in _list_trends(cases, lambda case: case.trend):
        if _is_warmup(case, trend):
            yield Finding(
                record=case.record,
                fact=f"after the {case.record.warmup_samples} samples of its warm-up the time "
                f"still fell by {_percent(trend.change)} from the first to the last third of "
                f"{len(case.totals_ns)} samples",
                size=abs(trend.change),
            )


def find_drifts(cases: Sequence[Case]) -> Iterator[Finding]:
    for case, trend in _list_trends(cases, lambda case: case.trend):
        if not _is_warmup(case, trend):
            yield _describe_drift(case, trend, "time", 1 + trend.change)


def find_speedup_drifts(cases: Sequence[Case]) -> Iterator[Finding]:
    for case, trend in _list_trends(cases, lambda case: case.ratio_trend):
        yield _describe_drift(case, trend, "speedup", 1 / (1 + trend.change))


def _describe_drift(case: Case, trend: Trend, where: Where, ratio: float) -> Finding:
    count = len(case.totals_ns if where == "time" else case.ratios)
    return Finding(
        record=case.record,
        fact=f"its {where} {'rose' if ratio > 1 else 'fell'} by {_percent(ratio - 1)} from the "
        f"first to the last third of {count} samples",
        size=abs(trend.change),
    )


def _is_warmup(case: Case, trend: Trend) -> bool:
    if trend.change > 0:
        return False
    settled = abs(trend.late_change) <= SETTLED_SHARE * abs(trend.change)
    return settled or case.record.steady is False


def _list_trends(
    cases: Sequence[Case], read: Callable[[Case], Trend | None]
) -> list[tuple[Case, Trend]]:
    """Those that noise does not explain, given how many were looked at, of a size that matters."""
    found = [(case, trend) for case in cases if (trend := read(case)) is not None]
    found.sort(key=lambda pair: pair[1].chance)
    known = [
        number
        for number, (_, trend) in enumerate(found, 1)
        if trend.chance <= CHANCE * number / len(found)
    ]
    return [
        (case, trend)
        for case, trend in found[: max(known, default=0)]
        if abs(trend.change) >= LEAST_CHANGE
    ]


def find_two_modes(cases: Sequence[Case]) -> Iterator[Finding]:
    # A step has two levels, too, and is told as what it is.
    trending = {id(case) for case, _ in _list_trends(cases, lambda case: case.trend)}
    for case in (case for case in cases if id(case) not in trending):
        modes = find_modes(case.totals_ns, num_series=len(cases))
        if modes is not None and modes.distance >= LEAST_CHANGE:
            yield Finding(
                record=case.record,
                fact=f"{_percent(modes.high_share)} of {len(case.totals_ns)} samples lie around a "
                f"level of their own, {_percent(modes.distance)} above the others, with nothing "
                "between them",
                size=modes.distance,
            )


def find_few_samples(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if not case.totals_ns:
            continue
        time = estimate_median(case.totals_ns)
        if time.low is None:
            yield _describe_no_interval(case, time)
            continue
        known: dict[Where, Estimate] = {"time": time}
        if case.ratios and case.is_rival:
            known["speedup"] = estimate_median(case.ratios)
        widths: dict[Where, float] = {
            name: width for name, each in known.items() if (width := each.half_width) is not None
        }
        name: Where = max(widths, key=lambda each: widths[each], default="time")
        width, wanted = widths.get(name, 0.0), case.record.settings.precision
        if width > ROUNDING * wanted and not case.is_foreign:
            why = STOPS.get(case.record.stop or "")
            yield Finding(
                record=case.record,
                fact=f"its {name} is known to ±{_percent(width)} from {time.samples} samples, and "
                f"±{_percent(wanted)} was asked for{f' ({why})' if why else ''}",
                size=width,
                cause="wide",
            )


def _describe_no_interval(case: Case, time: Estimate) -> Finding:
    if time.samples == 1:
        return Finding(
            record=case.record,
            fact="it is a single value, and nobody can say how far it scatters",
            cause="single",
            advice="read it as a bare number: no difference to it is sure",
        )
    worth = round(effective_count(case.totals_ns))
    moving = f" that move together, worth {worth} independent ones," if worth < time.samples else ""
    return Finding(
        record=case.record,
        fact=f"{time.samples} samples{moving} give no interval; {fewest_samples()} independent "
        "ones would",
        size=1 / max(worth, 1),
        cause="none",
        advice="take more samples" if case.is_foreign else None,
    )


def _percent(share: float) -> str:
    """
    >>> _percent(-0.0512), _percent(0.123), _percent(2.5)
    ('5.1 %', '12 %', '250 %')
    """
    percentage = 100 * abs(share)
    # As many digits as the number is known to.
    return f"{percentage:.1f} %" if percentage < 9.95 else f"{percentage:.0f} %"
