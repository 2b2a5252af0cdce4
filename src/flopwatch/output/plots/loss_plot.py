"""Losses of models that were trained, over time, over tokens, or over steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flopwatch.analysis.quality import LOSS, read_curve
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import COUNT, DURATION, LARGE_COUNT, Unit, make_axis
from flopwatch.output.plots.lanes import Table, group_rows, read_table
from flopwatch.output.plots.plot import Plot, Point, Series, is_drawable, thin

NAME = "losses"
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
    x_label: str
    unit: Unit
    y_label: str
    read: Callable[[Row], Curve]


def _read_over_time(row: Row) -> Curve:
    """In nanoseconds; empty where no step was timed."""
    step_ns = row.total_ns
    if step_ns is None:
        return []
    points = read_curve(row.record, "step", VALIDATION_LOSS)
    return [(step * step_ns.value, loss) for step, loss in points]


def _read_over_steps(row: Row) -> Curve:
    """What is told better over time is left out."""
    if VALIDATION_LOSS in row.record.curves:
        return []
    return read_curve(row.record, "step", LOSS)


VIEWS = (
    View(
        title="Validation loss over training time",
        caption="Validation loss over training time: steps at their median time.",
        x_label="training time",
        unit=DURATION,
        y_label="validation loss",
        read=_read_over_time,
    ),
    View(
        title="Validation loss over tokens",
        caption="Validation loss over what was trained on.",
        x_label="tokens",
        unit=LARGE_COUNT,
        y_label="validation loss",
        read=lambda row: read_curve(row.record, "tokens", VALIDATION_LOSS),
    ),
    View(
        title="Loss over steps",
        caption="Loss of each step on its own texts. Variants that compute the same lie on one "
        "line.",
        x_label="step",
        unit=COUNT,
        y_label="loss",
        read=_read_over_steps,
    ),
)


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: for every case whose variants were trained."""
    trained = [row for row in rows if row.record.curves]
    if not trained:
        return
    table = read_table(rows)
    for group in group_rows(trained):
        for view in VIEWS:
            yield from _look(group, view, table)


def is_telling(plot: Plot) -> bool:
    """Losses of steps only show that variants agree, which the table says."""
    return plot.y.label == "validation loss"


def _look(group: Sequence[Row], view: View, table: Table) -> Iterator[Plot]:
    """None or one."""
    read = {row.record.variant: [p for p in view.read(row) if is_drawable(*p)] for row in group}
    curves = {variant: points for variant, points in read.items() if points}
    if not curves:
        return
    top = max(map(_find_top, curves.values()))
    cut = {variant: cut_off(points, top) for variant, points in curves.items()}
    xs = [x for points in curves.values() for x, _ in points]
    yield Plot(
        name=NAME,
        title=view.title,
        subject=" ".join(filter(None, [table.subject, table.name_case(group[0])])),
        caption=view.caption,
        conditions=table.conditions,
        x=make_axis(view.x_label, [0.0, *xs], view.unit),
        y=make_axis(view.y_label, [y for points in cut.values() for _, y in points], COUNT),
        series=tuple(
            Series(
                name=variant,
                number=table.numbers[variant],
                points=thin(
                    tuple(
                        Point(x=x, y=y, tip=f"{variant}: {view.y_label} {y:.4g}") for x, y in points
                    )
                ),
                is_joined=True,
                is_small=True,
            )
            for variant, points in cut.items()
        ),
        names="ends",
    )


def _find_top(points: Curve) -> float:
    """The highest loss once training has settled."""
    settled = [loss for x, loss in points if x >= SETTLED * points[-1][0]]
    return max(settled, default=points[-1][1])


def cut_off(points: Curve, top: float) -> Curve:
    """The line from where it first comes down to `top`, and nothing above it.

    >>> cut_off([(0, 10.0), (10, 0.0), (20, -1.0)], 5.0)
    [(5.0, 5.0), (10, 0.0), (20, -1.0)]
    """
    inside = next((place for place, (_, y) in enumerate(points) if y <= top), len(points) - 1)
    kept = [(x, min(y, top)) for x, y in points[inside:]]
    if inside:
        (x0, y0), (x1, y1) = points[inside - 1], points[inside]
        share = (y0 - top) / (y0 - y1) if y0 > y1 else 1.0
        kept.insert(0, (x0 + (x1 - x0) * min(1.0, share), top))
    return kept
