"""How times are distributed: every sample as a dot, and their density, which shows two modes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from flopwatch.analysis.statistics import measured_totals_ns, median
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import TIME, make_axis
from flopwatch.output.plots.lanes import Table, group_rows, lay_lanes, read_table
from flopwatch.output.plots.plot import Axis, Plot, Point, Reference, Series, is_ratio, thin
from flopwatch.output.plots.sample_plot import WIDE
from flopwatch.output.units import format_time

NAME = "distribution"
LANE_PX = 56.0
FEWEST_SAMPLES = 5
"""Fewer have no distribution to speak of."""
MANY_SAMPLES = 30
STEPS = 100
"""Of a density, from one end of the axis to the other."""
MOST_FOR_DENSITY = 1000
"""Of these many samples, a density is as good as that of all."""
FLOOR, CEILING = -0.18, 0.46
"""Where in its lane a density stands, dots are below."""


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """One for every case, of rows that share a table."""
    table = read_table(rows)
    for group in group_rows([row for row in rows if row.total_ns is not None]):
        times_ns = {
            row.record.variant: found
            for row in group
            if len(found := [t for t in measured_totals_ns(row.record) if is_ratio(t)])
            >= FEWEST_SAMPLES
        }
        drawn = [row for row in group if row.record.variant in times_ns]
        if drawn:
            yield _make_plot(drawn, times_ns, table)


def _make_plot(rows: Sequence[Row], times_ns: dict[str, list[float]], table: Table) -> Plot:
    reach = [time for times in times_ns.values() for time in (min(times), max(times))]
    is_log = max(reach) > WIDE * min(reach)
    x = make_axis("time of a run", reach, TIME, is_log=is_log)
    positions = {row.record.variant: place for place, row in enumerate(rows)}
    lanes = lay_lanes(rows, table, lambda row: positions[row.record.variant], LANE_PX)
    series, references = [], []
    for y, row in lanes.rows:
        variant = row.record.variant
        times = times_ns[variant]
        middle = median(times)
        series.append(
            Series(
                name=variant,
                number=table.numbers[variant],
                points=_strew(times, y, variant),
                outline=_outline_density(times, x, y),
                is_small=True,
            )
        )
        references.append(
            Reference(
                points=((middle, y + FLOOR), (middle, y + CEILING)),
                text=f"{variant}, median {format_time(middle)}",
                series=positions[variant],
            )
        )
    return Plot(
        name=NAME,
        title="How the times of a run are distributed",
        subject=" ".join(filter(None, [table.subject, table.name_case(rows[0])])),
        caption=(
            "A dot is one measured run, warm-up left out; the shape above is how dense they lie, "
            "the line in it their median, whose time stands on the right."
        ),
        conditions=table.conditions,
        x=x,
        y=lanes.y,
        series=tuple(series),
        names="lanes",
        lanes=lanes.count,
        lane_px=LANE_PX,
        notes=lanes.note(lambda row: format_time(median(times_ns[row.record.variant]))),
        references=tuple(references),
    )


def _strew(times_ns: Sequence[float], y: float, variant: str) -> tuple[Point, ...]:
    """Dots below the density, up and down in turn so that they can be told apart."""
    heights = (-0.26, -0.34, -0.30, -0.38)
    points = (
        Point(x=time, y=y + heights[place % len(heights)], tip=f"{variant}: {format_time(time)}")
        for place, time in enumerate(sorted(times_ns))
    )
    return thin(tuple(points))


def _outline_density(
    times_ns: Sequence[float], x: Axis, y: float
) -> tuple[tuple[float, float], ...]:
    """In the axis's own terms, so that on a scale of ratios it is a density of ratios."""
    stride = math.ceil(len(times_ns) / MOST_FOR_DENSITY)
    places = sorted(x.place(time) for time in times_ns)[::stride]
    width = _choose_width(places)
    grid = [place / STEPS for place in range(STEPS + 1)]
    # The peaks of narrow densities would lie between the steps of the grid.
    grid = sorted({*grid, *places[:: max(1, len(places) // STEPS)]})
    density = [sum(math.exp(-0.5 * ((at - place) / width) ** 2) for place in places) for at in grid]
    highest = max(density)
    heights = [value / highest if value > 0.003 * highest else 0.0 for value in density]
    seen = [place for place, height in enumerate(heights) if height]
    inside = range(max(0, seen[0] - 1), min(len(grid), seen[-1] + 2))
    line = [
        (_find_value(x, grid[place]), y + FLOOR + (CEILING - FLOOR) * heights[place])
        for place in inside
    ]
    return ((line[0][0], y + FLOOR), *line, (line[-1][0], y + FLOOR))


def _choose_width(places: Sequence[float]) -> float:
    """Of the kernel. What would suit a normal distribution (Silverman's rule) where there are few
    samples, and half of it where there are many: that shows two modes as two."""
    count = len(places)
    mean = sum(places) / count
    deviation = math.sqrt(sum((place - mean) ** 2 for place in places) / count)
    quartiles = (places[3 * count // 4] - places[count // 4]) / 1.34
    spread = min(deviation, quartiles) or deviation
    factor = 0.9 if count < MANY_SAMPLES else 0.45
    return max(factor * spread / float(count**0.2), 0.004)


def _find_value(axis: Axis, place: float) -> float:
    if axis.is_log:
        return axis.low * math.exp(place * math.log(axis.high / axis.low))
    return axis.low + place * (axis.high - axis.low)
