"""Losses of models that were trained, over time, over tokens, or over steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flopwatch.analysis.quality import LOSS, read_curve
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.channels import (
    DURATION,
    PICKED,
    PLAIN,
    RIGHT,
    SI,
    TIP,
    Axis,
    layer,
    make_axis,
    order_by_end,
    pick_by_legend,
    series_channels,
    zoom,
)
from flopwatch.output.plots.lanes import Table, group_rows, read_table
from flopwatch.output.plots.plot import Plot, Values, is_drawable, thin
from flopwatch.output.units import printable

VALIDATION_LOSS = "validation_loss"
SETTLED = 0.25
"""The part of a training after which its losses must all be seen. The first losses are several
times the last ones, and would press flat what one wants to see."""

Curve = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One way to look at a training."""

    title: str
    caption: str
    make_x: Callable[[list[float]], Axis]
    y_title: str
    read: Callable[[Row], Curve]
    is_informative: bool = True


def _read_over_time(row: Row) -> Curve:
    """In nanoseconds; empty where no step was timed."""
    if row.total_ns is None:
        return []
    points = read_curve(row.record, "step", VALIDATION_LOSS)
    return [(step * row.total_ns.value, loss) for step, loss in points]


def _read_over_steps(row: Row) -> Curve:
    """What is shown better over time is left out."""
    if VALIDATION_LOSS in row.record.curves:
        return []
    return read_curve(row.record, "step", LOSS)


VIEWS = (
    View(
        title="Validation loss over training time",
        caption="Validation loss over training time: steps at their median time.",
        make_x=lambda xs: make_axis("training time", xs, DURATION, from_zero=True),
        y_title="validation loss",
        read=_read_over_time,
    ),
    View(
        title="Validation loss over tokens",
        caption="Validation loss over the tokens that were trained on.",
        make_x=lambda xs: Axis(title="tokens", label=SI, begins_at_zero=True),
        y_title="validation loss",
        read=lambda row: read_curve(row.record, "tokens", VALIDATION_LOSS),
    ),
    View(
        title="Loss over steps",
        caption=(
            "Loss of each step on its own sequences. Variants that compute the same lie on one "
            "line."
        ),
        make_x=lambda xs: make_axis("step", xs, PLAIN, from_zero=True),
        y_title="loss",
        read=_read_over_steps,
        is_informative=False,  # it only shows that variants agree, which the table says
    ),
)


def make_losses(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: for every case whose variants were trained."""
    trained = [row for row in rows if row.record.curves]
    table = read_table(rows) if trained else None
    for group in group_rows(trained):
        for view in VIEWS:
            read = {
                row.record.variant: [point for point in view.read(row) if is_drawable(*point)]
                for row in group
            }
            curves = {variant: curve for variant, curve in read.items() if curve}
            if curves and table is not None:
                yield _draw_losses(curves, view, group[0], table)


def _draw_losses(curves: dict[str, Curve], view: View, first: Row, table: Table) -> Plot:
    top = max(map(_find_top, curves.values()))
    x = view.make_x([x for curve in curves.values() for x, _ in curve])
    y = Axis(title=view.y_title)
    lines: dict[str, Values] = {}
    numbers: dict[str, int] = {}
    for variant, curve in curves.items():
        name = printable(variant)
        lines[name] = thin(
            [
                {
                    "x": x.scale(place),
                    "y": loss,
                    "series": name,
                    "tip": f"{name}\n{view.y_title} {loss:.4g} at {x.scale(place):g} "
                    f"{x.title.rpartition(', ')[2]}",
                }
                for place, loss in cut_off(curve, top)
            ]
        )
        numbers[name] = table.numbers[variant]
    looks = series_channels(
        {name: numbers[name] for name in order_by_end(lines)}, dash=True, **RIGHT
    )
    xy = {"x": x.channel(grid=False), "y": y.channel("y")}
    colour = {"color": looks["color"], "opacity": PICKED}
    line = {"type": "line", "strokeWidth": 2, "clip": True}
    dot = {"type": "point", "size": 14, "filled": True, "clip": True}
    dashed = {**xy, **colour, "strokeDash": looks["strokeDash"]}
    return table.make_plot(
        name="losses",
        title=view.title,
        shared=table.name_case(first),
        caption=view.caption,
        data={"points": [point for line in lines.values() for point in line]},
        layers=[
            layer("points", line, dashed, params=[pick_by_legend(), zoom("x", "y")]),
            layer("points", dot, {**xy, **colour, "shape": looks["shape"], **TIP}),
        ],
        height=280,
        is_informative=view.is_informative,
    )


def _find_top(curve: Curve) -> float:
    """The highest loss once training has settled."""
    settled = [loss for x, loss in curve if x >= SETTLED * curve[-1][0]]
    return max(settled, default=curve[-1][1])


def cut_off(curve: Curve, top: float) -> Curve:
    """The line from where it first comes down to `top`, and nothing above it.

    >>> cut_off([(0, 10.0), (10, 0.0), (20, -1.0)], 5.0)
    [(5.0, 5.0), (10, 0.0), (20, -1.0)]
    """
    inside = next((place for place, (_, y) in enumerate(curve) if y <= top), len(curve) - 1)
    kept = [(x, min(y, top)) for x, y in curve[inside:]]
    if inside:
        (x0, y0), (x1, y1) = curve[inside - 1], curve[inside]
        share = (y0 - top) / (y0 - y1) if y0 > y1 else 1.0
        kept.insert(0, (x0 + (x1 - x0) * min(1.0, share), top))
    return kept
