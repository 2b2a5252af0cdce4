"""What of the results is drawn: speedups, and losses over time and tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flopwatch.analysis.crossover import AXIS, Crossover, count_tokens, find_crossovers
from flopwatch.analysis.quality import Quality, read_curve
from flopwatch.analysis.summary import Row
from flopwatch.case import label
from flopwatch.report.charts import Dot, Series, draw_dots, draw_lines
from flopwatch.report.crossover import group_crossovers, list_tokens

TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
TOKEN_UNITS = ((1e9, "billion tokens"), (1e6, "million tokens"), (1e3, "thousand tokens"))

FEWEST_VARIANTS = 3
"""Fewer are told by the table at a glance."""

FEWEST_BATCHES = 3
"""Two make a line, and no curve."""

SETTLED = 0.25
"""The part of a training after which its losses must all be seen. The first losses are several
times the last ones, and would press flat what one wants to see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    caption: str
    svg: str


def draw_speedups(rows: Sequence[Row]) -> Figure | None:
    """Of rows that share a table; None where there is too little to see."""
    dots = [
        Dot(
            name=row.record.variant,
            place=label(row.record.params),
            speedup=row.speedup,
            limit=row.limit,
            is_like=not row.unlike,
        )
        for row in rows
        if row.speedup is not None
    ]
    if len({row.record.variant for row in rows}) < FEWEST_VARIANTS or not dots:
        return None
    baseline = rows[0].record.baseline
    return _figure(
        f"Speedups over {baseline} with their intervals, a dot for each case.",
        draw_dots(dots, baseline=baseline),
    )


def draw_crossovers(rows: Sequence[Row]) -> list[Figure | None]:
    """Speedups over the batch, of rows that share a table: a chart for every shape, dtype, ..."""
    groups = group_crossovers(find_crossovers(rows))
    return [_draw_crossover(group) for group in groups if len(list_tokens(group)) >= FEWEST_BATCHES]


def _draw_crossover(group: Sequence[Crossover]) -> Figure | None:
    record = group[0].rows[0].record
    ticks = [(math.log2(tokens), str(tokens)) for tokens in list_tokens(group)]
    others = {axis: value for axis, value in record.params.items() if axis != AXIS}
    series = [
        Series(
            name=crossover.rows[0].record.variant,
            number=number,
            points=[
                (math.log2(count_tokens(row)), row.speedup.value)
                for row in crossover.rows
                if row.speedup
            ],
        )
        for number, crossover in enumerate(group, 1)
    ]
    one = Series(name=record.baseline, number=0, points=[(x, 1.0) for x, _ in ticks])
    svg = draw_lines([one, *series], x_label=AXIS, y_label="speedup", x_ticks=ticks)
    return _figure(f"Speedup over {record.baseline} by {AXIS}, {label(others)}.", svg)


def draw_losses(group: Sequence[Quality]) -> list[Figure | None]:
    """Over training time and over tokens."""
    return [
        _draw_loss(
            group,
            "Validation loss over training time: steps at their median time.",
            ("training time, ", TIME_UNITS),
            _read_over_time,
        ),
        _draw_loss(
            group,
            "Validation loss over what was trained on.",
            ("", TOKEN_UNITS),
            lambda quality: read_curve(quality.row.record, "tokens", "validation_loss"),
        ),
    ]


def _read_over_time(quality: Quality) -> list[tuple[float, float]]:
    """In seconds; empty where no step was timed."""
    step_ns = quality.row.total_ns
    if step_ns is None:
        return []
    points = read_curve(quality.row.record, "step", "validation_loss")
    return [(step * step_ns.value / 1e9, loss) for step, loss in points]


def _draw_loss(
    group: Sequence[Quality],
    caption: str,
    axis: tuple[str, Sequence[tuple[float, str]]],
    read: Callable[[Quality], list[tuple[float, float]]],
) -> Figure | None:
    # Without a baseline, nobody gets its colour.
    first = 0 if group[0].row.record.variant == group[0].row.record.baseline else 1
    series = [
        Series(name=quality.row.record.variant, number=number, points=points)
        for number, quality in enumerate(group, first)
        if (points := read(quality))
    ]
    if not series:
        return None
    prefix, units = axis
    longest = max(one.points[-1][0] for one in series)
    size, unit = next((u for u in units if longest >= u[0]), units[-1])
    svg = draw_lines(
        [replace(one, points=[(x / size, loss) for x, loss in one.points]) for one in series],
        x_label=f"{prefix}{unit}",
        y_label="validation loss",
        top=_find_top([one.points for one in series]),
    )
    return _figure(caption, svg)


def _find_top(curves: Sequence[Sequence[tuple[float, float]]]) -> float:
    """The highest loss once training has settled."""
    return max(
        max((loss for x, loss in points if x >= SETTLED * points[-1][0]), default=points[-1][1])
        for points in curves
    )


def _figure(caption: str, svg: str) -> Figure | None:
    return Figure(caption=caption, svg=svg) if svg else None
