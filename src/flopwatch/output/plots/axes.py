"""Axes: round ticks that enclose all values, with units that people read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flopwatch.output.plots.plot import HUGE, Axis, Tick
from flopwatch.output.units import PREFIXES, TIME_UNITS

MOST_TICKS = 8
MOST_COUNTS = 16
LOG_MARGIN = 1.08
"""How far beyond the last value a logarithmic axis goes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    steps: tuple[tuple[float, str], ...]
    """How much each is, and its name; the largest first."""
    on_ticks: bool = False
    """Whether it stands at every tick, and not beside the axis."""

    def choose(self, value: float) -> tuple[float, str]:
        return next((step for step in self.steps if value >= step[0] * (1 - 1e-9)), self.steps[-1])


def rate(unit: str) -> Unit:
    return Unit(steps=tuple((size, f"{prefix}{unit}") for size, prefix in PREFIXES))


TIME = Unit(steps=TIME_UNITS)
DURATION = Unit(steps=((3600e9, "hours"), (60e9, "minutes"), (1e9, "seconds")))
BYTES = Unit(steps=((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))
COUNT = Unit(steps=((1.0, ""),))
LARGE_COUNT = Unit(
    steps=((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")), on_ticks=True
)
RATIO = Unit(steps=((1.0, "x"),), on_ticks=True)
SHARE = Unit(steps=((0.01, "%"),))


def make_axis(
    label: str, values: Iterable[float], unit: Unit, *, is_log: bool = False, ticks: int = 0
) -> Axis:
    """That encloses all values, of which there is one at least; they must be drawable, and on a
    logarithmic axis more than 0."""
    known = list(values)
    low, high = min(known), max(known)
    most = ticks or MOST_TICKS
    if is_log:
        return _make_log_axis(label, low, high, unit, most)
    scale, name = unit.choose(max(abs(low), abs(high)))
    places = choose_ticks(low / scale, high / scale, most)
    texts = [f"{text}{name}" if unit.on_ticks else text for text in label_ticks(places)]
    return Axis(
        label=label if unit.on_ticks or not name else f"{label}, {name}",
        ticks=tuple(
            Tick(value=place * scale, text=text) for place, text in zip(places, texts, strict=True)
        ),
        low=places[0] * scale,
        high=places[-1] * scale,
    )


def make_count_axis(label: str, counts: Iterable[float]) -> Axis:
    """Logarithmic, with a tick at each of the counts that there are, unless those are many."""
    known = sorted(set(counts))
    if len(known) > MOST_COUNTS:
        return make_axis(label, known, COUNT, is_log=True)
    low, high = known[0], known[-1]
    return Axis(
        label=label,
        ticks=tuple(Tick(value=count, text=format_tick(count)) for count in known),
        low=low / LOG_MARGIN,
        high=high * LOG_MARGIN,
        is_log=True,
    )


def make_lane_axis(ticks: Sequence[Tick], lanes: float) -> Axis:
    return Axis(label="", ticks=tuple(ticks), low=0.5 - lanes, high=0.5)


def _make_log_axis(label: str, low: float, high: float, unit: Unit, most: int) -> Axis:
    scale, name = unit.choose(math.sqrt(low) * math.sqrt(high))
    places = choose_log_ticks(low / scale, high / scale, most)
    first, last = places[0] * scale, places[-1] * scale
    # Nearer ends than the outermost ticks, if two ticks at least stay.
    start, end = max(first, low / LOG_MARGIN), min(last, high * LOG_MARGIN)
    inside = [place for place in places if start <= place * scale <= end]
    if len(inside) > 1:
        places, first, last = inside, start, end
    if unit.on_ticks or high / low < 100 or not name:
        texts = [format_tick(place) + (name if unit.on_ticks else "") for place in places]
        label = label if unit.on_ticks or not name else f"{label}, {name}"
    else:  # from microseconds to seconds, every tick has a unit of its own
        texts = [_format_with_unit(place * scale, unit) for place in places]
    return Axis(
        label=label,
        ticks=tuple(
            Tick(value=place * scale, text=text) for place, text in zip(places, texts, strict=True)
        ),
        low=first,
        high=last,
        is_log=True,
    )


def _format_with_unit(value: float, unit: Unit) -> str:
    scale, name = unit.choose(value)
    return f"{format_tick(value / scale)} {name}"


def format_tick(value: float) -> str:
    """
    >>> [format_tick(v) for v in (0.05, 1, 512, 65536, 2e12)]
    ['0.05', '1', '512', '65536', '2e+12']
    """
    return f"{value:.6g}"


def choose_ticks(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """Round numbers that enclose the range.

    >>> choose_ticks(1.83, 3.1)
    [1.8, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2]
    """
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or high - low < 1 / HUGE:  # flat
        low, high = low - (0.05 * size or 1), high + (0.05 * size or 1)
    unit = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (unit, 2 * unit, 5 * unit, 10 * unit, 20 * unit):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= most:
            break
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def choose_log_ticks(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """For a scale on which 2 is as far from 1 as 0.5: 1, 2, 5, 10 or, where those are too many,
    powers of ten; where the range is narrow, more of them, or plain steps.

    >>> choose_log_ticks(0.83, 1.32), choose_log_ticks(0.09, 4)
    ([0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4], [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
    """
    if high / low < 4:
        ticks = choose_ticks(low, high, most)
        if ticks[0] > 0:
            return ticks
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if math.log10(high / low) < 2.7:
        digits = (1, 2, 5) if high / low > 10 else (1, 1.5, 2, 3, 5, 7)
        marks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        start = max(place for place, mark in enumerate(marks) if mark <= low * 1.001)
        stop = min(place for place, mark in enumerate(marks) if mark >= high * 0.999)
        return [float(f"{mark:.2g}") for mark in marks[start : max(stop, start + 1) + 1]]
    stride = math.ceil((last - first) / most)
    return [float(f"1e{first + stride * n}") for n in range(math.ceil((last - first) / stride) + 1)]


def label_ticks(ticks: Sequence[float]) -> list[str]:
    """With as many decimals as tell them apart.

    >>> label_ticks([0, 0.5, 1.0])
    ['0.0', '0.5', '1.0']
    """
    if max(map(abs, ticks)) >= 1e6:
        return [f"{tick:g}" for tick in ticks]
    decimals = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    return [f"{tick:.{decimals}f}" if decimals < 5 else f"{tick:g}" for tick in ticks]
