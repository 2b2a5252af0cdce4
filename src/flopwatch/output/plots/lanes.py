"""Rows as lanes, one below the other: the variants of a case together, under its parameters.

The vertical scale counts lanes: the first is at 0, the next at -1; a heading may be lower than a
lane is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.summary import Row
from flopwatch.output.plots.channels import layer, text
from flopwatch.output.plots.plot import LONGEST_NAME, Layer, Plot, Values, join, shorten
from flopwatch.output.plots.theme import INKS
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import choose_axes
from flopwatch.output.units import printable
from flopwatch.suites.case import format_value

MOST_LANES = 40
HEADING_PX = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What is the same for all plots of rows that share a table."""

    subject: str
    axes: Sequence[str]
    """In which its cases differ."""
    numbers: dict[str, int]
    """How each variant is drawn, in all plots alike; 0 is the baseline."""
    conditions: str
    middle: str = "median"
    """What stands for all runs of a case; of published figures it is the mean."""

    def name_case(self, row: Row, *without: str) -> str:
        params = row.record.params
        shown = [axis for axis in self.axes if axis in params and axis not in without]
        return " ".join(f"{axis}={format_value(params[axis])}" for axis in shown)

    def make_plot(self, *, shared: str = "", **content: Any) -> Plot:
        """`shared` is what all its cases share besides the subject."""
        subject = join(self.subject, shared)
        return Plot(subject=subject, conditions=self.conditions, **content)

    def tip(self, row: Row, *lines: str) -> str:
        """The case, and below it what is drawn of it."""
        case = ", ".join(filter(None, [row.record.variant, self.name_case(row)]))
        return "\n".join(map(printable, [case, *lines]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    table: Table
    rows: Sequence[tuple[float, Row]]
    """With their places."""
    names: Values
    headings: Values
    count: float
    """In heights of a lane."""
    lane_px: float

    def channel(self, field: str = "y") -> Layer:
        scale = {"domain": [0.5 - self.count, 0.5], "nice": False, "zero": False, "padding": 0}
        return {"field": field, "type": "quantitative", "axis": None, "scale": scale}

    def make_plot(
        self,
        *,
        note: Callable[[Row], str] | None,
        data: dict[str, Values],
        layers: Sequence[Layer],
        with_guides: bool = False,
        **content: Any,
    ) -> Plot:
        """With a note for each row at the right edge; None where the names have theirs."""
        names = self.names
        if note is not None:
            pairs = zip(names, self.rows, strict=True)
            names = [{**name, "note": note(row)} for name, (_, row) in pairs]
        return self.table.make_plot(
            data={"lanes": names, "headings": self.headings, **data},
            layers=self._add_words(layers, with_guides=with_guides),
            height=self.count * self.lane_px,
            **content,
        )

    def _add_words(self, marks: Sequence[Layer], *, with_guides: bool) -> list[Layer]:
        """Marks on guides along the lanes, and the words of the lanes on top."""
        y, width = self.channel(), {"value": "width"}
        ends = {"x": {"value": 0}, "x2": width}
        thin = {"type": "rule", "color": INKS.line, "strokeWidth": 0.7}
        # Lines end below a heading.
        paper = {"type": "rect", "color": INKS.paper, "opacity": 1}
        band = {**ends, "y": self.channel("bottom"), "y2": {"field": "top"}}
        start = {"x": {"value": 0}, "y": y}
        notes = {"x": width, "y": y, "text": {"field": "note"}}
        return [
            *([layer("lanes", thin, {**ends, "y": y})] if with_guides else []),
            *marks,
            *([layer("headings", paper, band)] if self.headings else []),
            text("headings", start, style="heading", align="left"),
            text("lanes", start, align="right", dx=-8),
            text("lanes", notes, style="note", align="left", dx=8),
        ]


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


def lay_lanes(rows: Sequence[Row], table: Table, lane_px: float) -> Lanes:
    """Variants below the parameters of their case; where cases have one row each, lanes are named
    for the cases."""
    groups = group_rows(rows)
    placed: list[tuple[float, Row]] = []
    names: Values = []
    headings: Values = []
    by_case = len(groups) > 1 and all(len(group) == 1 for group in groups)
    shared, name = _name_cases(rows, table) if by_case else ("", table.name_case)
    top = 0.5

    def add_heading(words: str) -> None:
        nonlocal top
        bottom = top - HEADING_PX / lane_px
        headings.append(
            {"y": (top + bottom) / 2, "top": top, "bottom": bottom, "text": printable(words)}
        )
        top = bottom

    if shared:
        add_heading(shared)
    for group in groups:
        if len(groups) > 1 and not by_case:
            add_heading(table.name_case(group[0]))
        for row in group:
            words = name(row) if by_case else row.record.variant
            placed.append((top - 0.5, row))
            names.append({"y": top - 0.5, "text": shorten(words)})
            top -= 1
    return Lanes(
        table=table, rows=placed, names=names, headings=headings, count=0.5 - top, lane_px=lane_px
    )


def _name_cases(rows: Sequence[Row], table: Table) -> tuple[str, Callable[[Row], str]]:
    """How to name lanes so that they differ: where whole names would be cut, the names of axes
    stand above them once, and so does what all of them share."""
    if all(len(table.name_case(row)) <= LONGEST_NAME for row in rows):
        return "", table.name_case

    def write(row: Row, axis: str) -> str:
        value: Any = row.record.params.get(axis, "")
        return format_value(value)

    values = {axis: {write(row, axis) for row in rows} for axis in table.axes}
    differing = [axis for axis in table.axes if len(values[axis]) > 1]
    shared = [f"{axis}={min(values[axis])}" for axis in table.axes if axis not in differing]
    heading = "; ".join(filter(None, [", ".join(differing), " ".join(shared)]))
    return heading, lambda row: ", ".join(write(row, axis) for axis in differing)
