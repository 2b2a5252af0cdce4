"""What a plot shows, as data: axes, series, references. Nothing here draws.

A drawer gets values in their own units (nanoseconds, bytes, ratios) and the ticks that say what
they mean. Plots with lanes have names instead of numbers on their vertical axis: lane 0 is at
the top, and `y` of what lies in lane n is -n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MOST_POINTS = 400
"""Of one series: more cannot be seen, and a page must stay small."""
HUGE = 1e100
"""Values beyond this are no measurements, and would spoil the arithmetic of a drawing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    value: float
    text: str
    series: int | None = None
    """Where the text is the name of a series, its position in the plot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    label: str
    """With its unit, unless every tick has it."""
    ticks: tuple[Tick, ...]
    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """From 0 at the low end to 1 at the high one, whatever the value."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = (math.log(max(v, 1 / HUGE)) for v in (value, low, high))
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    x: float
    y: float
    low: float | None = None
    """The interval, along the axis that the series says."""
    high: float | None = None
    limit: float | None = None
    """What arithmetic would give, on the same axis."""
    tip: str = ""
    is_hollow: bool = False
    """Not a comparison of like with like."""
    is_unsure: bool = False
    """Its interval is not known: it must not look more precise than one with an interval."""
    is_ringed: bool = False
    """From here on it pays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    y: float
    start: float
    end: float
    tip: str
    text: str = ""
    """Written into it, where there is room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    name: str
    number: int
    """What it is drawn like: 0 is for the baseline, others count from 1."""
    points: tuple[Point, ...] = ()
    bars: tuple[Bar, ...] = ()
    outline: tuple[tuple[float, float], ...] = ()
    """A filled shape."""
    intervals: Literal["x", "y", "band"] = "x"
    """Along which axis those of points lie; a band is along y."""
    is_joined: bool = False
    """Whether its points make a line."""
    is_small: bool = False
    """Whether its points are many, and drawn small."""
    shade: int = 0
    """Bars of one colour differ by it; 0 is the darkest."""
    marker: int | None = None
    """In place of the one that belongs to its number."""
    end: float | None = None
    """Where at the right edge its name stands, where names stand there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A line to compare with."""

    points: tuple[tuple[float, float], ...]
    text: str = ""
    text_at: Literal["top", "start", "end"] = "end"
    series: int | None = None
    """Whose line it is; None where it is nobody's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A shaded part of the x axis."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    y: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What a mark means."""

    mark: Literal["limit", "hollow", "unsure", "ring", "crossing"]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    name: str
    """Its kind: one of `KINDS`."""
    title: str
    subject: str
    """What was measured: the suite, and what all cases share."""
    caption: str
    """How to read it, in a sentence or two."""
    conditions: str = ""
    """How it was measured."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    names: Literal["ends", "top", "lanes"]
    """Where the names of series stand: at the ends of their lines, in a row above, or as names of
    lanes."""
    lanes: float = 0
    """How many, with headings; 0 where the vertical axis is one of numbers."""
    lane_px: float = 18
    bar_px: float = 18
    headings: tuple[Label, ...] = ()
    """Above lanes that belong together."""
    notes: tuple[Label, ...] = ()
    """At the right edge of lanes."""
    references: tuple[Reference, ...] = ()
    spans: tuple[Span, ...] = ()
    keys: tuple[Key, ...] = ()


def is_drawable(*values: float | None) -> bool:
    """Whether all of them are numbers that a drawing can hold.

    >>> is_drawable(1.0, -3), is_drawable(float("nan")), is_drawable(1e300), is_drawable(None)
    (True, False, False, False)
    """
    return all(value is not None and abs(value) < HUGE for value in values)


def is_ratio(*values: float | None) -> bool:
    """The same for a scale of ratios, on which there is no 0."""
    return all(value is not None and 1 / HUGE < value < HUGE for value in values)


def thin(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """At most MOST_POINTS, the first and the last among them. Of neighbours the lowest and the
    highest stay, so that no outlier is lost."""
    if len(points) <= MOST_POINTS:
        return points
    first, *between, last = points
    size = math.ceil(len(between) / (MOST_POINTS // 2 - 1))
    kept = [first]
    for start in range(0, len(between), size):
        places = range(start, min(start + size, len(between)))
        ends = {
            min(places, key=lambda place: between[place].y),
            max(places, key=lambda place: between[place].y),
        }
        kept += [between[place] for place in sorted(ends)]
    return (*kept, last)
