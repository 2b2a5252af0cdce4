"""Charts as inline SVG: no script, nothing fetched, in the colours of the page around them.

Series differ by colour and, once the colours are used up, by dashes; their names stand at the ends
of their lines. The colours are ones that colour-blind people can tell apart, in a light and in a
dark form. All text is escaped: names come from records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from flopwatch.analysis.statistics import Estimate
from flopwatch.report.columns import UNLIKE
from flopwatch.report.units import format_ratio, format_speedup

STYLE = """
:root {
  --c0: #333333; --c1: #0d45de; --c2: #8d1d00; --c3: #2aaa66; --c4: #790a83; --c5: #c98a15;
}
@media (prefers-color-scheme: dark) {
  :root {
    --c0: #dddddd; --c1: #79a3d8; --c2: #d35609; --c3: #0bf17e; --c4: #b148f6; --c5: #fecf1e;
  }
}
.chart { display: block; width: 100%; min-width: 26rem; font-size: 12px; fill: currentColor; }
.chart .grid { stroke: var(--line); } .chart .axis { stroke: currentColor; }
.chart .faint { fill: var(--quiet); } .chart .middle { text-anchor: middle; }
.chart .end { text-anchor: end; }
.chart .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .whisker, .chart .dot { stroke: var(--c1); stroke-width: 2; }
.chart .limit { stroke: currentColor; stroke-width: 2; }
"""

WIDTH = 600
LINE_HEIGHT = 16
CHARACTER_WIDTH = 6.6
"""Of the average character at 12 px, generously."""
LONGEST_NAME = 26
MOST_POINTS = 400
"""Of one line: more cannot be seen, and a page must stay small."""
COLOURS = 5
"""Besides the first, --c0, which is for the baseline."""
DASHES = ("", "7 3", "2 3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line of a chart."""

    name: str
    number: int
    """What it is drawn like: 0 is for the baseline, others count from 1."""
    points: Sequence[tuple[float, float]]
    """In order of x, at least one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One speedup with its interval."""

    name: str
    """Dots of the same name share a lane."""
    place: str
    """What tells it from the others of its name."""
    speedup: Estimate
    limit: float | None
    is_like: bool
    """Whether it is a comparison of like with like; it is drawn hollow where not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """From values to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def draw_lines(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    top: float | None = None,
    x_ticks: Sequence[tuple[float, str]] = (),
) -> str:
    """A line chart. What is above `top` is cut off; by default nothing is. Ticks with their labels,
    where given, enclose all points; by default they are round numbers from 0."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    x_ticks = x_ticks or label_ticks(choose_ticks(min(0, *xs), max(xs)))
    y_ticks = choose_ticks(min(ys), max(ys) if top is None else max(top, min(ys)))
    if not x_ticks or not y_ticks:
        return ""
    height = 70 + max(250, LINE_HEIGHT * len(series))
    right = WIDTH - 34 - CHARACTER_WIDTH * max(len(_shorten(one.name)) for one in series)
    x = Scale(low=x_ticks[0][0], high=x_ticks[-1][0], start=46, end=right)
    y = Scale(low=y_ticks[0], high=y_ticks[-1], start=height - 44, end=26)
    parts = [
        *(_grid_line(46, right, y.place(v), t) for v, t in label_ticks(y_ticks)),
        *(_x_tick(place, y.start, text) for place, text in _space(x, x_ticks)),
        f'<line class="axis" x1="46" x2="{right:.1f}" y1="{y.start}" y2="{y.start}"/>',
        f'<text class="faint" x="8" y="12">{escape(y_label)}</text>',
        f'<text class="faint end" x="{right:.1f}" y="{height - 6}">{escape(x_label)}</text>',
        *_draw_series(series, x, y),
    ]
    ends = "; ".join(f"{one.name} {one.points[-1][1]:.4g}" for one in series)
    return _wrap(height, f"{y_label} against {x_label}", f"At the end: {ends}.", parts)


def draw_dots(dots: Sequence[Dot], *, baseline: str) -> str:
    """A lane for every name: speedups with their intervals, on a scale of ratios, and a mark where
    arithmetic puts the limit."""
    lanes: dict[str, list[Dot]] = {}
    for dot in dots:
        lanes.setdefault(dot.name, []).append(dot)
    reach = [v for dot in dots for v in (dot.speedup.value, dot.speedup.low, dot.speedup.high)]
    values = [v for v in (*reach, *(dot.limit for dot in dots), 1.0) if v is not None]
    ticks = choose_ratio_ticks(min(values), max(values))
    if not ticks:
        return ""
    left = 16 + CHARACTER_WIDTH * max(len(_shorten(name)) for name in [*lanes, baseline])
    x = Scale(low=math.log(ticks[0]), high=math.log(ticks[-1]), start=left, end=WIDTH - 120)
    lane_height = min(60.0, 14 + 5.0 * max(map(len, lanes.values())))
    bottom = 26 + lane_height * len(lanes)
    parts = [_x_tick(x.place(math.log(v)), bottom, f"{v:g}x", top=22) for v in ticks]
    one = x.place(0)
    parts += [
        f'<line class="axis" x1="{one:.1f}" x2="{one:.1f}" y1="22" y2="{bottom:.1f}"/>',
        f'<text class="faint middle" x="{one:.1f}" y="14">{escape(_shorten(baseline))}</text>',
        f'<text class="faint end" x="{x.end}" y="{bottom + 36:.1f}">speedup</text>',
    ]
    parts += _draw_keys(dots, bottom)
    for number, (name, lane) in enumerate(lanes.items()):
        middle = 26 + lane_height * (number + 0.5)
        parts += _draw_lane(name, lane, x, middle, lane_height)
    text = "; ".join(f"{d.name} at {d.place} {format_speedup(d.speedup)}" for d in dots)
    return _wrap(bottom + 42, f"Speedup over {baseline}", f"{text}.", parts)


def choose_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers that enclose the range; empty where it is beyond drawing.

    >>> choose_ticks(1.83, 3.1)
    [1.8, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2]
    """
    size = max(abs(low), abs(high))
    if not size < 1e100:
        return []
    if high - low <= 1e-9 * size or high - low < 1e-100:  # flat
        low, high = low - (0.05 * size or 1), high + (0.05 * size or 1)
    unit = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (unit, 2 * unit, 5 * unit, 10 * unit, 20 * unit):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= most:
            break
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def choose_ratio_ticks(low: float, high: float) -> list[float]:
    """For a scale on which 2x is as far from 1x as 0.5x; 1x is always within.

    >>> choose_ratio_ticks(0.83, 1.32), choose_ratio_ticks(0.09, 4)
    ([0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4], [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
    """
    if not 1e-9 < low <= high < 1e9:
        return []
    if high / low < 4:
        ticks = choose_ticks(low, high)
        if ticks[0] > 0:
            return ticks
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    first = max(place for place, mark in enumerate(marks) if mark <= low * 1.001)
    last = min(place for place, mark in enumerate(marks) if mark >= high * 0.999)
    return [float(f"{mark:.1g}") for mark in marks[first : last + 1]]


def label_ticks(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """With as many decimals as tell them apart.

    >>> label_ticks([0, 0.5, 1.0])
    [(0, '0.0'), (0.5, '0.5'), (1.0, '1.0')]
    """
    if not ticks:
        return []
    if max(map(abs, ticks)) >= 1e6:
        return [(tick, f"{tick:g}") for tick in ticks]
    decimals = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    return [(tick, f"{tick:.{decimals}f}" if decimals < 5 else f"{tick:g}") for tick in ticks]


def spread(wanted: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Places near the wanted ones, in ascending order, that keep their distance.

    >>> spread([10, 11, 50], 0, 100, 16)
    [10, 26, 50]
    >>> spread([90, 95], 0, 100, 16)
    [84, 100]
    """
    placed: list[float] = []
    for value in wanted:
        placed.append(max(value, low if not placed else placed[-1] + gap))
    limit = high
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - gap
    return placed


def _space(x: Scale, ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Where ticks stand, and their labels, without those that would touch the one before."""
    spaced: list[tuple[float, str]] = []
    free = -math.inf
    for value, text in ticks:
        place, half = x.place(value), CHARACTER_WIDTH * len(text) / 2
        spaced.append((place, text if place - half >= free else ""))
        free = place + half if spaced[-1][1] else free
    return spaced


def _draw_series(series: Sequence[Series], x: Scale, y: Scale) -> list[str]:
    """Lines, the first on top, and the names beside their ends."""
    parts = []
    ends: list[tuple[float, Series]] = []
    for one in reversed(series):
        points = [(x.place(a), y.place(b)) for a, b in _thin(one.points)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in cut_off(points, y.end))
        a, b = points[-1][0], max(points[-1][1], y.end)
        ends.append((b, one))
        colour = _colour(one.number)
        parts.append(
            f'<g style="stroke:{colour}"><title>{escape(one.name)}</title>'
            f'<polyline class="curve" points="{path}" stroke-dasharray="{_dash(one.number)}"/>'
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" style="fill:{colour}"/></g>'
        )
    ends.sort(key=lambda end: end[0])
    heights = spread([b for b, _ in ends], y.end, y.start, LINE_HEIGHT)
    for (_, one), height in zip(ends, heights, strict=True):
        parts.append(
            f'<line class="curve" style="stroke:{_colour(one.number)}" x1="{x.end + 8:.1f}" '
            f'x2="{x.end + 24:.1f}" y1="{height:.1f}" y2="{height:.1f}" '
            f'stroke-dasharray="{_dash(one.number)}"/>'
            f'<text x="{x.end + 28:.1f}" y="{height + 4:.1f}">{escape(_shorten(one.name))}</text>'
        )
    return parts


def cut_off(points: Sequence[tuple[float, float]], top: float) -> list[tuple[float, float]]:
    """The line from where it first comes down to `top`; heights grow downwards.

    >>> cut_off([(0, -10), (10, 10), (20, 15)], 0)
    [(5.0, 0), (10, 10), (20, 15)]
    """
    inside = next((place for place, (_, b) in enumerate(points) if b >= top), len(points))
    kept = [(a, max(b, top)) for a, b in points[inside:]]
    if 0 < inside < len(points):
        (a0, b0), (a1, b1) = points[inside - 1], points[inside]
        kept.insert(0, (a0 + (a1 - a0) * (top - b0) / (b1 - b0), top))
    return kept


def _draw_lane(
    name: str, lane: Sequence[Dot], x: Scale, middle: float, lane_height: float
) -> list[str]:
    low, high = min(d.speedup.value for d in lane), max(d.speedup.value for d in lane)
    values = format_ratio(low)
    if format_ratio(high) != values:
        values += f" to {format_ratio(high)}"
    parts = [
        f'<text class="end" x="{x.start - 10:.1f}" y="{middle + 4:.1f}">'
        f"{escape(_shorten(name))}</text>",
        f'<text x="{x.end + 14}" y="{middle + 4:.1f}">{values}</text>',
    ]
    gap = min(5.0, (lane_height - 14) / len(lane))
    for number, dot in enumerate(lane):
        parts.append(_draw_dot(dot, x, middle + gap * (number - (len(lane) - 1) / 2)))
    return parts


def _draw_dot(dot: Dot, x: Scale, height: float) -> str:
    def place(value: float) -> str:
        return f"{x.place(math.log(value)):.1f}"

    speedup = dot.speedup
    shapes = ""
    if speedup.low is not None and speedup.high is not None:
        shapes += (
            f'<line class="whisker" x1="{place(speedup.low)}" '
            f'x2="{place(speedup.high)}" y1="{height:.1f}" y2="{height:.1f}"/>'
        )
    shapes += _dot_mark(x.place(math.log(speedup.value)), height, dot.is_like)
    text = f"{dot.name}, {dot.place}: {format_speedup(speedup)}"
    if dot.limit is not None:
        text += f", limit {format_ratio(dot.limit)}"
        shapes += _limit_mark(x.place(math.log(dot.limit)), height)
    return f"<g><title>{escape(text)}</title>{shapes}</g>"


def _dot_mark(x: float, y: float, is_like: bool) -> str:
    fill = _colour(1) if is_like else "Canvas"
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{fill}"/>'


def _limit_mark(x: float, y: float) -> str:
    return f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 5:.1f}" y2="{y + 5:.1f}"/>'


def _draw_keys(dots: Sequence[Dot], bottom: float) -> list[str]:
    """What the marks mean, those that there are, side by side below the chart."""
    keys = []
    if any(dot.limit is not None for dot in dots):
        keys.append((_limit_mark, "what arithmetic would give"))
    if not all(dot.is_like for dot in dots):
        keys.append((lambda x, y: _dot_mark(x, y, is_like=False), UNLIKE))
    y = bottom + 32
    return [
        draw(12 + 200 * number, y)
        + f'<text class="faint" x="{20 + 200 * number}" y="{y + 4:.1f}">{text}</text>'
        for number, (draw, text) in enumerate(keys)
    ]


def _grid_line(left: float, right: float, y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{left}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="end" x="{left - 6}" y="{y + 4:.1f}">{text}</text>'
    )


def _x_tick(x: float, y: float, text: str, top: float | None = None) -> str:
    """With a grid line up to `top`, or a short mark."""
    start, kind = (y + 4, "axis") if top is None else (top, "grid")
    return (
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{start:.1f}" y2="{y:.1f}"/>'
        f'<text class="middle" x="{x:.1f}" y="{y + 18:.1f}">{text}</text>'
    )


def _wrap(height: float, title: str, description: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height:.0f}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Fewer points, the last among them."""
    stride = math.ceil(len(points) / MOST_POINTS)
    return points[::-1][::stride][::-1]


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _colour(number: int) -> str:
    return f"var(--c{0 if number == 0 else (number - 1) % COLOURS + 1})"


def _dash(number: int) -> str:
    return DASHES[(number - 1) // COLOURS % len(DASHES)] if number else ""
