"""The break-even of a variant: over tokens, a batch size, or any other axis of counts.

Cases that differ only by that axis are a series. A variant breaks even at the smallest measured
value at which, as at all larger ones, its verdict is "faster". Between two measured values at which
its verdicts are opposite, "slower" and "faster", it crosses 1: that point is interpolated linearly
in the logarithms of speedup and axis, which is exact where a time is a power of the axis.

The interval of that point lies between the places where the interpolated ends of the speedups'
intervals cross 1. It is computed from those and not by resampling rounds: they need no assumption
about the noise, they allow for samples that move together, and a bootstrap of the median of a dozen
rounds is too narrow. Since verdicts are opposite on both sides, it never leaves the values that
were measured. It covers noise, but not that the curve between them is no power law.
`tests/analysis/test_break_even_simulated.py` counts how often it holds the true point.

A series of single values, as published ones are, has the interpolated point alone. One of several
samples that are too few for an interval is unclear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.suites.case import digest

AXIS = "tokens"
"""Which tables of results look at by themselves."""
OTHER_NAMES = {"batch_size": AXIS}
"""What others call our axes: SwitchBack's batch size is a number of tokens."""

Outcome = Literal["from", "up-to", "always", "never", "several", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """Where a speedup passes 1."""

    below: Row
    above: Row
    """The nearest measured cases on both sides at which it is clear who is faster."""
    pays_above: bool
    point: float
    low: float | None
    high: float | None
    """None where nothing is known about noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """One variant over the values of an axis at which it was compared with the baseline."""

    axis: str
    rows: list[Row]
    """By their place on the axis, at least two, each with a verdict."""
    paying: list[Row]
    """The last of them, all "faster"; empty where the last one is not."""
    crossings: list[Crossing]
    outcome: Outcome
    is_bare: bool
    """Whether all are single values: no verdict is clear, and crossings are by values."""

    @property
    def below(self) -> Row | None:
        """The last one that is not among those that pay; None where all do."""
        place = len(self.rows) - len(self.paying)
        return self.rows[place - 1] if place else None

    def place(self, row: Row) -> int:
        return int(row.record.params[self.axis])


def find_break_evens(rows: Sequence[Row], axis: str = AXIS) -> list[BreakEven]:
    """Of every variant and set of other parameters, in order of appearance."""
    series: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        record = row.record
        value = record.params.get(axis)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if row.verdict is not None and is_count:
            others = other_params(row, axis)
            key = (record.suite, row.conditions_digest, record.baseline, others, record.variant)
            series.setdefault(key, []).append(row)
    return [_find_break_even(found, axis) for found in series.values() if len(found) > 1]


def choose_compared(rows: Sequence[Row], variants: Sequence[str] = ()) -> list[Row]:
    """Rows that were compared with a baseline, of these variants; none: of all."""
    compared = [row for row in rows if row.verdict]
    known = dict.fromkeys(row.record.variant for row in compared)
    for variant in variants:
        if variant not in known:
            raise UsageError(
                f"{variant!r} was not compared with a baseline; what was: {', '.join(known) or '-'}"
            )
    return [row for row in compared if not variants or row.record.variant in variants]


def choose_axis(rows: Sequence[Row], wanted: str | None = None) -> str:
    """The one along which variants were compared at several values, unless one is named."""
    axes = dict.fromkeys(axis for row in rows for axis in row.record.params)
    found = [axis for axis in axes if find_break_evens(rows, axis)]
    named = next((name for name in (wanted, OTHER_NAMES.get(wanted or "")) if name in found), None)
    if named is not None:
        return named
    known = f"there are series along {', '.join(found)}" if found else "there are none along any"
    if wanted is not None:
        raise UsageError(
            f"no variant was compared with its baseline at several counts of {wanted!r}; {known}"
        )
    if not found:
        raise UsageError(
            "no variant was compared with its baseline at several values of an axis of counts; "
            "measure some, as by --set tokens=64,512,4096"
        )
    if len(found) > 1:
        raise UsageError(f"there are series along {', '.join(found)}; choose one by --axis")
    return found[0]


def other_params(row: Row, axis: str = AXIS) -> str:
    """Equal for cases that differ by that axis only."""
    return digest({name: value for name, value in row.record.params.items() if name != axis})


def _find_break_even(rows: Sequence[Row], axis: str) -> BreakEven:
    ordered = sorted(rows, key=lambda row: int(row.record.params[axis]))
    others = [place for place, row in enumerate(ordered, 1) if row.verdict != "faster"]
    is_bare = all(row.speedup is None or row.speedup.samples == 1 for row in ordered)
    signs = [_judge(row, is_bare) for row in ordered]
    decided = [place for place, sign in enumerate(signs) if sign]
    crossings = [
        _locate(ordered[first : last + 1], axis)
        for first, last in zip(decided, decided[1:], strict=False)
        if signs[first] != signs[last]
    ]
    return BreakEven(
        axis=axis,
        rows=ordered,
        paying=ordered[max(others, default=0) :],
        crossings=crossings,
        outcome=_name_outcome(signs, crossings, ordered),
        is_bare=is_bare,
    )


def _judge(row: Row, is_bare: bool) -> int:
    """1 where it is clearly faster, -1 where it is clearly slower, otherwise 0."""
    if not is_bare:
        return {"faster": 1, "slower": -1}.get(row.verdict or "", 0)
    value = 1.0 if row.speedup is None else row.speedup.value
    return (value > 1) - (value < 1)


def _name_outcome(
    signs: Sequence[int], crossings: Sequence[Crossing], rows: Sequence[Row]
) -> Outcome:
    if len(crossings) > 1:
        return "several"
    if crossings:
        return "from" if crossings[0].pays_above else "up-to"
    if min(signs) > 0:
        return "always"
    if max(signs) > 0:  # and as fast, or unclear, elsewhere
        return "from" if signs[-1] > 0 else "up-to"
    return "unclear" if rows[-1].verdict == "unclear" and signs[-1] == 0 else "never"


def _locate(rows: Sequence[Row], axis: str) -> Crossing:
    """Rows from one that is clear to the next that is clearly the opposite."""
    curves: dict[str, list[tuple[float, float]]] = {"low": [], "value": [], "high": []}
    # One without an interval between them would bend the line of the values only.
    known = [row for row in rows if row.speedup is not None and row.speedup.low is not None]
    for row in known or rows:
        assert row.speedup is not None
        x = math.log(row.record.params[axis])
        for name, curve in curves.items():
            y = getattr(row.speedup, name)
            if y is not None:
                curve.append((x, math.log(y)))
    pays_above = curves["value"][-1][1] > 0
    points = _cross(curves["value"])
    # On the way up the interval's upper end passes 1 first, its lower end last.
    ends = [_cross(curves[name]) for name in (("high", "low") if pays_above else ("low", "high"))]
    return Crossing(
        below=rows[0],
        above=rows[-1],
        pays_above=pays_above,
        point=points[len(points) // 2],  # where noise makes it cross several times, the middle one
        low=min(ends[0], default=None),
        high=max(ends[1], default=None),
    )


def _cross(curve: Sequence[tuple[float, float]]) -> list[float]:
    """Where lines from point to point, in logarithms, pass 0.

    >>> [round(x, 6) for x in _cross([(0.0, -1.0), (math.log(16), 1.0), (math.log(64), 1.0)])]
    [4.0]
    """
    found = []
    for (x, y), (next_x, next_y) in zip(curve, curve[1:], strict=False):
        if y == 0:
            found.append(math.exp(x))
        elif y * next_y < 0:
            found.append(math.exp(x + (next_x - x) * y / (y - next_y)))
    return found


def as_dict(break_even: BreakEven) -> dict[str, Any]:
    """For ``--json``."""
    below, place = break_even.below, break_even.place
    return {
        "axis": break_even.axis,
        "measured": [place(row) for row in break_even.rows],
        "outcome": break_even.outcome,
        "faster_from": place(break_even.paying[0]) if break_even.paying else None,
        "below": None if below is None else place(below),
        "crossings": [
            {
                "between": [place(crossing.below), place(crossing.above)],
                "pays": "above" if crossing.pays_above else "below",
                "point": crossing.point,
                "low": crossing.low,
                "high": crossing.high,
            }
            for crossing in break_even.crossings
        ],
    }


def series_as_dict(break_even: BreakEven) -> dict[str, Any]:
    """The same, with what it is a series of."""
    record = break_even.rows[0].record
    return {
        "suite": record.suite,
        "params": {name: v for name, v in record.params.items() if name != break_even.axis},
        "variant": record.variant,
        "baseline": record.baseline,
        **as_dict(break_even),
        "speedups": [None if row.speedup is None else row.speedup.value for row in break_even.rows],
        "verdicts": [row.verdict for row in break_even.rows],
    }
