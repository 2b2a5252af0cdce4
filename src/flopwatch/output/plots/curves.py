"""Something of each case over its size, its context or its ranks: lines, one for each variant and
set of other parameters; where there is no such axis, lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import (
    LARGE_COUNT,
    SHARE,
    Unit,
    format_tick,
    make_axis,
    make_count_axis,
)
from flopwatch.output.plots.lanes import Table, divide_lanes, lay_lanes, read_table
from flopwatch.output.plots.plot import Axis, Plot, Point, Series, is_ratio, thin
from flopwatch.suites.case import format_value

MOST_LINES = 8
"""In one plot; with more, every set of other parameters has its own."""
SIZE = "parameters"
RANKS = "ranks"
TUNABLE = ("micro_batch", "grad_accum", "global_batch")
"""What one chooses for the sake of speed: of several, the best is drawn."""
NOT_A_SIZE = (RANKS, *TUNABLE)
"""What lies over ranks is a plot of its own, with an ideal line."""
TUNED = "Of several batches, the fastest."
WITH_BARS = "Bars are intervals at 99 %."
WIDE = 10.0
"""Rates that differ more than this go on a scale of ratios."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """What is drawn."""

    name: str
    """The kind of plot."""
    title: str
    label: str
    unit: Unit
    caption: str
    find: Callable[[Row], Estimate | None]
    show: Callable[[float], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Over:
    """What it is drawn over."""

    label: str
    axis: str
    """The parameter that differs along a line."""
    find: Callable[[Row], float]


def make_curves(rows: Sequence[Row], quantity: Quantity) -> Iterator[Plot]:
    """Of rows that share a table, one at least; over model size, then over every axis of counts;
    where there is none of these, as lanes."""
    known = [row for row in rows if is_known(quantity.find(row))]
    if not known:
        return
    table = read_table(rows)
    overs = _list_overs(known, table)
    for over in overs:
        for lines in divide_lines(known, over, quantity, table):
            yield draw_lines(lines, over, quantity, table)
    if not overs:
        for some in divide_lanes(known):
            yield _draw_lanes(some, quantity, table)


def is_known(estimate: Estimate | None) -> bool:
    return estimate is not None and is_ratio(estimate.value)


def _list_overs(rows: Sequence[Row], table: Table) -> list[Over]:
    overs = []
    sizes = {row.record.facts.get(SIZE) for row in rows if "model" in row.record.params}
    if "model" in table.axes and len(sizes) > 1 and is_ratio(*sizes):
        overs.append(Over(label=SIZE, axis="model", find=lambda row: row.record.facts[SIZE]))
    lengths = [a for a in table.axes if a not in NOT_A_SIZE and is_axis_of_counts(rows, a)]
    return [*overs, *map(over_axis, lengths)]


def is_axis_of_counts(rows: Sequence[Row], axis: str) -> bool:
    """Whether all its values are whole numbers from 1 on, of which there are at least two."""
    values = {_read_count(row.record.params.get(axis)) for row in rows}
    return None not in values and len(values) > 1


def _read_count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63
    return value if is_count else None


def over_axis(axis: str) -> Over:
    return Over(label=axis, axis=axis, find=lambda row: float(row.record.params[axis]))


def divide_lines(
    rows: Sequence[Row], over: Over, quantity: Quantity, table: Table
) -> Iterator[dict[tuple[str, str], list[Row]]]:
    """By variant and other parameters. Of what can be tuned, the best is taken. A single point is
    no line."""
    best: dict[tuple[str, str], dict[float, Row]] = {}
    for row in rows:
        key = (row.record.variant, table.name_case(row, over.axis, *TUNABLE))
        line, x = best.setdefault(key, {}), over.find(row)
        if x not in line or _find_value(row, quantity) > _find_value(line[x], quantity):
            line[x] = row
    lines = {key: [line[x] for x in sorted(line)] for key, line in best.items() if len(line) > 1}
    if len(lines) <= MOST_LINES:
        if lines:
            yield lines
        return
    for wanted in dict.fromkeys(others for _, others in lines):
        yield {key: line for key, line in lines.items() if key[1] == wanted}


def _find_value(row: Row, quantity: Quantity) -> float:
    estimate = quantity.find(row)
    assert estimate is not None
    return estimate.value


def draw_lines(
    lines: dict[tuple[str, str], list[Row]], over: Over, quantity: Quantity, table: Table
) -> Plot:
    names, shared = _name_lines(lines, over, table)
    number_of = _number_lines(lines, table)
    series = tuple(
        Series(
            name=names[key],
            number=number_of[key],
            points=thin(tuple(_make_point(row, over, quantity, table) for row in line)),
            intervals="y",
            is_joined=True,
        )
        for key, line in lines.items()
    )
    points = [point for one in series for point in one.points]
    reach = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    return Plot(
        name=quantity.name,
        title=f"{quantity.title} by {over.label}",
        subject=" ".join(filter(None, [table.subject, shared])),
        caption=_write_caption(quantity, points, is_tuned=bool({*TUNABLE} & {*table.axes})),
        conditions=table.conditions,
        x=_make_x(over, [point.x for point in points]),
        y=_make_y(quantity, reach),
        series=series,
        names="ends",
    )


def _name_lines(
    lines: dict[tuple[str, str], list[Row]], over: Over, table: Table
) -> tuple[dict[tuple[str, str], str], str]:
    """By what they differ in; and what they have in common."""
    params = {key: line[0].record.params for key, line in lines.items()}
    axes = [axis for axis in table.axes if axis not in (over.axis, *TUNABLE)]
    values = {axis: {format_value(p.get(axis)) for p in params.values()} for axis in axes}
    differing = [axis for axis in axes if len(values[axis]) > 1]
    shared = " ".join(f"{axis}={min(values[axis])}" for axis in axes if axis not in differing)
    by_variant = len({variant for variant, _ in lines}) > 1 or not differing
    names = {
        key: " ".join(
            [*([key[0]] if by_variant else []), *(_tell(axis, own[axis]) for axis in differing)]
        )
        for key, own in params.items()
    }
    return names, shared


def _tell(axis: str, value: Any) -> str:
    """Words tell what they are, numbers do not."""
    return value if isinstance(value, str) else f"{axis}={format_value(value)}"


def _write_caption(quantity: Quantity, points: Sequence[Point], *, is_tuned: bool) -> str:
    has_intervals = any(point.low is not None for point in points)
    return " ".join(
        [quantity.caption, *([TUNED] if is_tuned else []), *([WITH_BARS] if has_intervals else [])]
    )


def _make_y(quantity: Quantity, reach: Sequence[float]) -> Axis:
    """A share of the peak begins at 0."""
    is_log = quantity.unit != SHARE and max(reach) > WIDE * min(reach)
    values = reach if is_log else [0.0, *reach]
    return make_axis(quantity.label, values, quantity.unit, is_log=is_log)


def _make_x(over: Over, values: Sequence[float]) -> Axis:
    if over.label == SIZE:
        return make_axis(over.label, values, LARGE_COUNT, is_log=True)
    return make_count_axis(over.label, values)


def _number_lines(
    lines: dict[tuple[str, str], list[Row]], table: Table
) -> dict[tuple[str, str], int]:
    """Each its own; where there is one line a variant, the variant's."""
    if len({variant for variant, _ in lines}) == len(lines):
        return {key: table.numbers[key[0]] for key in lines}
    return {key: number for number, key in enumerate(lines)}


def _make_point(row: Row, over: Over, quantity: Quantity, table: Table) -> Point:
    estimate = quantity.find(row)
    assert estimate is not None
    has_interval = is_ratio(estimate.low, estimate.high)
    x = over.find(row)
    return Point(
        x=x,
        y=estimate.value,
        low=estimate.low if has_interval else None,
        high=estimate.high if has_interval else None,
        tip=f"{table.tell(row)}, {over.label} {format_tick(x)}: {quantity.show(estimate.value)}",
    )


def _draw_lanes(rows: Sequence[Row], quantity: Quantity, table: Table) -> Plot:
    variants = list(dict.fromkeys(row.record.variant for row in rows))
    lanes = lay_lanes(rows, table, lambda row: variants.index(row.record.variant))
    points: dict[str, list[Point]] = {variant: [] for variant in variants}
    for y, row in lanes.rows:
        estimate = quantity.find(row)
        assert estimate is not None
        has_interval = is_ratio(estimate.low, estimate.high)
        points[row.record.variant].append(
            Point(
                x=estimate.value,
                y=y,
                low=estimate.low if has_interval else None,
                high=estimate.high if has_interval else None,
                tip=f"{table.tell(row)}: {quantity.show(estimate.value)}",
            )
        )
    found = [point for many in points.values() for point in many]
    reach = [v for p in found for v in (p.x, p.low, p.high) if v is not None]
    return Plot(
        name=quantity.name,
        title=quantity.title,
        subject=table.subject,
        caption=_write_caption(quantity, found, is_tuned=False),
        conditions=table.conditions,
        x=make_axis(quantity.label, [0.0, *reach], quantity.unit),
        y=lanes.y,
        series=tuple(
            Series(name=variant, number=table.numbers[variant], points=tuple(points[variant]))
            for variant in variants
        ),
        names="lanes",
        lanes=lanes.count,
        headings=lanes.headings,
        notes=lanes.note(lambda row: _show(row, quantity)),
    )


def _show(row: Row, quantity: Quantity) -> str:
    estimate = quantity.find(row)
    return "" if estimate is None else quantity.show(estimate.value)
