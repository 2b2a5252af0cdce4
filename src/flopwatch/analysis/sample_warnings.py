"""Warnings that the samples themselves raise.

Whether samples lie around two levels instead of one.

Of all ways to cut the ordered samples in two, neither part smaller than a quarter, the one with the
widest gap is taken: the distance between the lower part's 90 % quantile and the upper part's 10 %
quantile, over the distance of their medians. Quantiles, so that outliers neither fill a gap nor
make one; logarithms, so that skewed noise is no second level. Samples without any structure, spread
evenly, give gaps of 0.2 and a chance part that falls with their number: what exceeds
0.2 + 3 / sqrt(n) is a level of its own, but for less than one such series in a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flopwatch.analysis.statistics import Estimate, effective_count, estimate_median, fewest_samples
from flopwatch.analysis.warning_findings import LEAST_CHANGE, Case, Finding, Trend

FEWEST = 16
"""With fewer, no gap is too wide for chance."""
LEAST_SHARE = 0.25
"""A smaller part is outliers, which a median ignores."""
EVEN_GAP = 0.2
MODES_THRESHOLD = 3.0
FOR_EACH_TENFOLD = 0.3
"""Added to CHANCE for ten times as many series, each of which may raise an alarm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Modes:
    low: float
    high: float
    """Medians of the two parts."""
    high_share: float
    gap: float

    @property
    def distance(self) -> float:
        """How much more the higher one is, relatively."""
        return self.high / self.low - 1


def find_modes(values: Sequence[float], num_series: int = 1) -> Modes | None:
    """None where one level explains the values, or they are too few; `num_series` is how many
    series are looked at.

    >>> find_modes([100 + (7 * n) % 11 for n in range(40)]) is None
    True
    >>> modes = find_modes([(100, 100, 130)[n % 3] + (7 * n) % 5 for n in range(40)])
    >>> modes.low, modes.high, round(modes.high_share, 2)
    (102.0, 132.0, 0.33)
    """
    import numpy as np

    count = len(values)
    if count < FEWEST:
        return None
    ordered = np.sort(np.asarray(values, dtype=float))
    logs = np.log(ordered)
    least = math.ceil(LEAST_SHARE * count)
    lower = np.arange(least, count - least + 1)  # how many are in the lower part
    upper = count - lower
    distance = logs[lower + upper // 2] - logs[(lower - 1) // 2]
    top = np.rint(0.9 * (lower - 1)).astype(int)
    bottom = lower + np.rint(0.1 * (upper - 1)).astype(int)
    gaps = (logs[bottom] - logs[top]) / np.where(distance > 0, distance, np.inf)
    best = int(np.argmax(gaps))
    chance = MODES_THRESHOLD + FOR_EACH_TENFOLD * math.log10(max(1, num_series))
    if gaps[best] <= EVEN_GAP + chance / math.sqrt(count):
        return None
    # Quantiles leave the place of the cut open; the widest step between neighbours decides.
    first, last = int(top[best]), int(bottom[best])
    cut = first + 1 + int(np.argmax(np.diff(logs[first : last + 1])))
    return Modes(
        low=float(np.median(ordered[:cut])),
        high=float(np.median(ordered[cut:])),
        high_share=(count - cut) / count,
        gap=float(gaps[best]),
    )


CHANCE = 0.001
"""Of all trends that are reported, so large a share may be noise (Benjamini and Hochberg)."""
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
    # A step has two levels, too, and is reported as a drift.
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
        width, wanted = widths.get(name, 0.0), case.record.settings.target_interval
        if width > ROUNDING * wanted and not case.is_foreign:
            why = STOPS.get(case.record.stop_reason or "")
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
            fact="it is a single value, with unknown scatter",
            cause="single",
            advice="do not rely on small differences to it",
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
