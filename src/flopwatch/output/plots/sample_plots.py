"""Single samples: in the order in which they were taken, which shows warm-up, drift and outliers,
and how they are distributed, which shows two modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwatch.analysis.statistics import measured_totals_ns, median
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.channels import (
    PICKED,
    PLAIN,
    RIGHT,
    TIME,
    TIP,
    Axis,
    layer,
    make_axis,
    order_by_end,
    pick_by_legend,
    series_channels,
    text,
    zoom,
)
from flopwatch.output.plots.lanes import Table, group_rows, lay_lanes, read_table
from flopwatch.output.plots.plot import Plot, Values, is_ratio, thin
from flopwatch.output.plots.theme import INKS
from flopwatch.output.units import format_time, printable

WIDE = 4.0
"""Times that differ more than this go on a logarithmic scale."""


def _make_time_axis(times_ns: Sequence[float]) -> Axis:
    is_log = max(times_ns) > WIDE * min(times_ns)
    return make_axis("time of a run", times_ns, TIME, is_log=is_log)


def make_samples(rows: Sequence[Row]) -> Iterator[Plot]:
    """One for every case, of rows that share a table."""
    sampled = [row for row in rows if len(row.record.rounds) > 1 and row.record.samples_ns]
    for group in group_rows(sampled):
        read = [(row, _read_samples(row)) for row in group]
        drawn = [(row, samples) for row, samples in read if samples]
        if drawn:
            yield _draw_samples(drawn, read_table(rows))


def _read_samples(row: Row) -> list[tuple[int, float, bool]]:
    """Round, nanoseconds of all phases, and whether it is warm-up."""
    record = row.record
    totals_ns = [sum(phases) for phases in zip(*record.samples_ns.values(), strict=True)]
    return [
        (round_, total_ns, place < record.warmup_samples)
        for place, (round_, total_ns) in enumerate(zip(record.rounds, totals_ns, strict=True))
        if is_ratio(total_ns)
    ]


def _draw_samples(drawn: Sequence[tuple[Row, list[tuple[int, float, bool]]]], table: Table) -> Plot:
    y = _make_time_axis([time_ns for _, samples in drawn for _, time_ns, _ in samples])
    x = make_axis("round", [r for _, samples in drawn for r, _, _ in samples], PLAIN)
    lines: dict[str, Values] = {}
    medians: Values = []
    for row, samples in drawn:
        name = printable(row.record.variant)
        points = [
            {
                "x": round_,
                "y": y.scale(time_ns),
                "series": name,
                "tip": f"{name}, round {round_}\n{format_time(time_ns)}"
                + (", warm-up" if is_warmup else ""),
            }
            for round_, time_ns, is_warmup in samples
        ]
        # Of the measured ones; where all are warm-up, of those.
        measured = [(r, t) for r, t, is_warmup in samples if not is_warmup]
        measured = measured or [(r, t) for r, t, _ in samples]
        middle_ns = median([time_ns for _, time_ns in measured])
        medians.append(
            {
                "x": measured[0][0],
                "x2": measured[-1][0],
                "y": y.scale(middle_ns),
                "series": name,
                "tip": f"{name}\nmedian {format_time(middle_ns)}",
            }
        )
        lines[name] = thin(points)
    ends = {line["series"]: [line] for line in medians}
    looks = series_channels(
        {name: table.numbers[row.record.variant] for name in order_by_end(ends)
         for row, _ in drawn if printable(row.record.variant) == name}, **RIGHT
    )  # fmt: skip
    xy = {"x": x.channel(grid=False), "y": y.channel("y")}
    colour = {"color": looks["color"], "opacity": PICKED}
    last_warmup = [r for _, samples in drawn for r, _, is_warmup in samples if is_warmup]
    warmup = [{"x": -0.5, "x2": max(last_warmup) + 0.5, "text": "warm-up"}] if last_warmup else []
    span = {"type": "rect", "color": INKS.quiet, "opacity": 0.13, "clip": True}
    bottom = {"x": xy["x"], "y": {"value": "height"}}
    line = {"type": "rule", "strokeWidth": 1.5, "clip": True}
    dot = {"type": "point", "size": 22, "strokeWidth": 1.2, "clip": True}
    shaped = {**xy, **colour, "shape": looks["shape"], **TIP}
    return table.make_plot(
        name="samples",
        title="Samples in the order of taking",
        shared=table.name_case(drawn[0][0]),
        caption="A mark is the time of one run; the line is the median of those after warm-up.",
        data={
            "points": [point for line in lines.values() for point in line],
            "medians": medians,
            "warmup": warmup,
        },
        layers=[
            layer("warmup", span, {"x": xy["x"], "x2": {"field": "x2"}}),
            text("warmup", bottom, style="note", align="left", dy=-9, dx=4),
            layer("medians", line, {**xy, "x2": {"field": "x2"}, **colour, **TIP}),
            layer("points", dot, shaped, params=[pick_by_legend(), zoom("x")]),
        ],
        height=280,
    )


# Distributions

FEWEST_SAMPLES = 5
"""Fewer have no distribution to speak of."""
MANY_SAMPLES = 30
STEPS = 120
"""Of a density, from one end to the other."""
MOST_FOR_DENSITY = 1000
"""Of these many samples, a density is as good as that of all."""
FLOOR, CEILING = -0.18, 0.46
"""Where in its lane a density stands; dots are below."""
DOTS = (-0.26, -0.34, -0.30, -0.38)
"""Their places in a lane, in turn, so that they can be told apart."""


def make_distributions(rows: Sequence[Row]) -> Iterator[Plot]:
    """One for every case, of rows that share a table."""
    for group in group_rows([row for row in rows if row.total_ns is not None]):
        times_ns = {
            row.record.variant: [t for t in measured_totals_ns(row.record) if is_ratio(t)]
            for row in group
        }
        drawn = [row for row in group if len(times_ns[row.record.variant]) >= FEWEST_SAMPLES]
        if drawn:
            yield _draw_distributions(drawn, times_ns, read_table(rows))


def _draw_distributions(
    rows: Sequence[Row], times_ns: dict[str, list[float]], table: Table
) -> Plot:
    shown = [time_ns for row in rows for time_ns in times_ns[row.record.variant]]
    axis = _make_time_axis(shown)
    lanes = lay_lanes(rows, table, 56)
    points: Values = []
    densities: Values = []
    medians: Values = []
    for y, row in lanes.rows:
        variant = row.record.variant
        name, times = printable(variant), sorted(times_ns[variant])
        middle_ns = median(times)
        points += thin(
            [
                {
                    "x": axis.scale(time_ns),
                    "y": y + DOTS[place % len(DOTS)],
                    "series": name,
                    "tip": f"{name}\n{format_time(time_ns)}",
                }
                for place, time_ns in enumerate(times)
            ],
            by="x",
        )
        densities += [
            {"x": axis.scale(x), "y": y + FLOOR + (CEILING - FLOOR) * height, "y2": y + FLOOR,
             "series": name}
            for x, height in estimate_density(times, is_log=axis.is_log)
        ]  # fmt: skip
        medians.append(
            {"x": axis.scale(middle_ns), "y": y + FLOOR, "y2": y + CEILING, "series": name,
             "tip": f"{name}\nmedian {format_time(middle_ns)}"}
        )  # fmt: skip
    numbers = {printable(row.record.variant): table.numbers[row.record.variant] for row in rows}
    looks = series_channels(numbers)
    colour = looks["color"]
    xy: dict[str, Any] = {"x": axis.channel(), "y": lanes.channel()}
    span = {**xy, "y2": {"field": "y2"}, "color": colour}
    dot = {"type": "point", "size": 16, "strokeWidth": 1.1, "opacity": 0.9}
    return lanes.make_plot(
        name="distribution",
        title="How the times of a run are distributed",
        shared=table.name_case(rows[0]),
        caption=(
            "A dot is one measured run, warm-up left out; the shape above is their density, the "
            "line in it their median, which is on the right."
        ),
        note=lambda row: format_time(median(times_ns[row.record.variant])),
        data={"points": points, "densities": densities, "medians": medians},
        layers=[
            layer("densities", {"type": "area", "opacity": 0.3, "line": True}, span),
            layer("medians", {"type": "rule", "strokeWidth": 2}, {**span, **TIP}),
            layer("points", dot, {**xy, "color": colour, "shape": looks["shape"], **TIP}),
        ],
    )


def estimate_density(times_ns: Sequence[float], *, is_log: bool) -> list[tuple[float, float]]:
    """Times and heights from 0 to 1, by a Gaussian kernel. On a logarithmic axis it is a density of
    ratios."""
    import numpy as np

    stride = -(-len(times_ns) // MOST_FOR_DENSITY)
    times = np.sort(np.asarray(times_ns))[::stride]
    places = np.log(times) if is_log else times
    reach = max(float(np.ptp(places)), 1e-9 if is_log else 1e-3 * float(places[0]))
    width = _choose_width(places, reach)
    grid = np.linspace(places[0] - 3 * width, places[-1] + 3 * width, STEPS)
    # The peaks of narrow densities would lie between the steps of the grid.
    grid = np.unique(np.concatenate([grid, places[:: max(1, len(places) // STEPS)]]))
    grid = grid if is_log else grid[grid > 0]
    density = np.exp(-0.5 * ((grid[:, None] - places) / width) ** 2).sum(axis=1)
    xs = np.exp(grid) if is_log else grid
    return [(float(x), float(h)) for x, h in zip(xs, density / density.max(), strict=True)]


def _choose_width(places: Any, reach: float) -> float:
    """Of the kernel. What would suit a normal distribution (Silverman's rule) where there are few
    samples, and half of it where there are many: that shows two modes as two."""
    low, high = places[len(places) // 4], places[3 * len(places) // 4]
    deviation = float(places.std())
    spread = min(deviation, float(high - low) / 1.34) or deviation
    factor = 0.9 if len(places) < MANY_SAMPLES else 0.45
    return max(factor * spread / float(len(places) ** 0.2), 0.004 * reach)
