"""Rows as lanes, one below the other: the variants of a case together, under its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import make_lane_axis
from flopwatch.output.plots.plot import Axis, Label, Tick
from flopwatch.output.plots.plot_frame import LONGEST_NAME
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import choose_axes
from flopwatch.suites.case import format_value

MOST_LANES = 40
HEADING_PX = 18.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What is the same for all plots of rows that share a table."""

    subject: str
    axes: Sequence[str]
    """In which its cases differ."""
    numbers: dict[str, int]
    """How each variant is drawn: in all plots alike."""
    conditions: str
    middle: str = "median"
    """What stands for all runs of a case; of published figures it is the mean."""

    def name_case(self, row: Row, *without: str) -> str:
        params = row.record.params
        shown = [axis for axis in self.axes if axis in params and axis not in without]
        return " ".join(f"{axis}={format_value(params[axis])}" for axis in shown)

    def tell(self, row: Row) -> str:
        """How a tip begins."""
        return ", ".join(filter(None, [row.record.variant, self.name_case(row)]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    rows: Sequence[tuple[float, Row]]
    """With their heights."""
    y: Axis
    count: float
    """In heights of a lane; that of a heading is less than one."""
    headings: tuple[Label, ...]

    def note(self, text: Callable[[Row], str]) -> tuple[Label, ...]:
        return tuple(Label(y=y, text=text(row)) for y, row in self.rows)


def read_table(rows: Sequence[Row]) -> Table:
    """Of rows that share a table, one at least."""
    subject, axes = choose_axes([row.record for row in rows])
    record = rows[0].record
    variants = dict.fromkeys(row.record.variant for row in rows)
    others = [variant for variant in variants if variant != record.baseline]
    return Table(
        subject=subject,
        axes=axes,
        numbers={record.baseline: 0, **{name: n for n, name in enumerate(others, 1)}},
        conditions=describe_conditions(record),
        middle="mean" if "published" in record.environment else "median",
    )


def group_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """By case."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.record.group_id, []).append(row)
    return list(groups.values())


def divide_lanes(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """As many cases at a time as a plot has room for."""
    taken: list[Row] = []
    for group in group_rows(rows):
        if taken and len(taken) + len(group) > MOST_LANES:
            yield taken
            taken = []
        taken += group
    if taken:
        yield taken


def lay_lanes(
    rows: Sequence[Row],
    table: Table,
    series: Callable[[Row], int | None] = lambda row: None,
    lane_px: float = HEADING_PX,
) -> Lanes:
    """`series` says which one a lane is named for."""
    groups = group_rows(rows)
    placed: list[tuple[float, Row]] = []
    headings: list[Label] = []
    ticks: list[Tick] = []
    by_case = len(groups) > 1 and all(len(group) == 1 for group in groups)
    heading, name = _name_cases(rows, table) if by_case else ("", table.name_case)
    top = 0.5
    if heading:
        headings.append(Label(y=top - HEADING_PX / lane_px / 2, text=heading))
        top -= HEADING_PX / lane_px
    for group in groups:
        if len(groups) > 1 and not by_case:
            headings.append(Label(y=top - HEADING_PX / lane_px / 2, text=table.name_case(group[0])))
            top -= HEADING_PX / lane_px
        for row in group:
            text = name(row) if by_case else row.record.variant
            placed.append((top - 0.5, row))
            ticks.append(Tick(value=top - 0.5, text=text, series=series(row)))
            top -= 1
    y = make_lane_axis(ticks, 0.5 - top)
    return Lanes(rows=placed, y=y, count=0.5 - top, headings=tuple(headings))


def _name_cases(rows: Sequence[Row], table: Table) -> tuple[str, Callable[[Row], str]]:
    """How to name lanes so that they are told apart: where whole names would be cut, the names of
    axes stand above them once, and so does what all of them share."""
    if all(len(table.name_case(row)) <= LONGEST_NAME for row in rows):
        return "", table.name_case
    values = {axis: {_write(row, axis) for row in rows} for axis in table.axes}
    differing = [axis for axis in table.axes if len(values[axis]) > 1]
    shared = [f"{axis}={values[axis].copy().pop()}" for axis in table.axes if axis not in differing]
    heading = "; ".join(filter(None, [", ".join(differing), " ".join(shared)]))
    return heading, lambda row: ", ".join(_write(row, axis) for axis in differing)


def _write(row: Row, axis: str) -> str:
    return format_value(row.record.params.get(axis, ""))
