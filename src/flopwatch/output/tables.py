"""Tables of anything: columns, and the sheet that they make of items.

The columns of results are in `columns`; other tables list theirs where they are made. `console`
draws sheets in a terminal, `formats` writes them for other programs, and the page has them too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from flopwatch.analysis.statistics import CONFIDENCE, Estimate
from flopwatch.analysis.summary import Row
from flopwatch.output.units import (
    TOO_NOISY,
    format_bytes,
    format_count,
    format_half_width,
    format_interval,
    format_measured_time,
    format_rate,
    format_ratio,
    format_share,
    format_speedup,
    format_time,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import format_value

VERDICT_STYLES: dict[str, str] = {
    "faster": "green",
    "slower": "red",
    "slightly faster": "green",
    "slightly slower": "red",
    "unclear": "yellow",
    "same": "",
}

Item = TypeVar("Item")
Value = float | str | None
"""What stands behind a cell: for sorting, and for formats that machines read."""
Kind = Literal[
    "word", "detail", "fact", "memory", "rate", "share", "limit", "phase", "interval", "throughput",
    "number",
]  # fmt: skip
"""How important a column is. Words and numbers are always shown."""

DISPENSABLE: tuple[Kind, ...] = (
    "detail", "fact", "memory", "rate", "share", "limit", "phase", "interval", "throughput"
)  # fmt: skip
"""What a narrow terminal leaves out, the least important first."""

Unit = Literal[
    "", "ns", "s", "bytes", "FLOP/s", "tokens/s", "B/s", "share", "ratio", "count", "integer"
]
"""Of raw values; a share is 1 for 100 %. Without a unit, a column has words."""


class Mark(NamedTuple):
    """What stands behind a number whose interval stands nowhere."""

    sign: str
    meaning: str
    """For the line below the table."""


IMPRECISE = Mark("?", "too noisy, or too few samples for an interval")


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    name: str
    cell: Callable[[Item], str]
    """The value as people read it; empty where it is not known."""
    kind: Kind = "number"
    value: Callable[[Item], Value] | None = None
    """The raw number behind the cell; where there is no such function, the cell is all there is."""
    heading: str = ""
    """In tables, whose cells have the units; without one, the name."""
    unit: str = ""
    meaning: str = ""
    brief: Callable[[Item], str] | None = None
    """The cell without an interval, for a table that has many of them."""
    interval: str = ""
    """The column that shows its interval, perhaps itself: in a table without that one, `marks` are
    shown instead."""
    marks: Callable[[Item], Sequence[Mark]] = lambda _: ()
    estimate: Callable[[Item], Estimate | None] = lambda _: None
    """What was measured: the number, or what it is computed from."""
    is_axis: bool = False
    has_words: bool = False
    """Whether it has words though its kind says how important it is."""
    in_table: Callable[[Sequence[Item]], bool] = lambda _: True
    """Whether the usual table of these has it; otherwise it is shown on request."""
    tone: Callable[[Item], str | None] = lambda _: None
    """The verdict whose colour a cell has."""

    def find_value(self, item: Item) -> Value:
        return self.cell(item) or None if self.value is None else self.value(item)

    @property
    def title(self) -> str:
        return self.heading or self.name

    @property
    def is_word(self) -> bool:
        return self.has_words or self.kind == "word"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table, for whatever will draw it. What is shown follows from columns and items."""

    title: str = ""
    columns: Sequence[Column[Any]]
    items: Sequence[Sequence[Any]]
    """Groups of what the rows are about."""
    conditions: str = ""
    """How it was measured: what would have to be the same for a fair comparison."""
    remarks: Sequence[str] = ()
    """Failures and warnings, one sentence each."""
    labels: int | None = None
    """Instead of what follows from the columns: `text_columns`."""
    rest_in: str = "--json"
    """The option that shows columns for which a terminal is too narrow."""

    @property
    def headings(self) -> list[str]:
        return [column.title for column in self.columns]

    @property
    def words(self) -> list[bool]:
        """For each column, whether it is one of words; the others are numbers."""
        return [column.is_word for column in self.columns]

    @property
    def text_columns(self) -> int:
        """How many leading columns are labels, which identify rows. In a group, all but
        the last of them, the variant, are the same in most tables."""
        if self.labels is not None:
            return self.labels
        return min([*self.words, False].index(False), len(self.columns) - 1)

    @cached_property
    def groups(self) -> list[list[list[str]]]:
        """The text of every cell, by group and row."""
        return [[[self._write(c, item) for c in self.columns] for item in g] for g in self.items]

    def _write(self, column: Column[Any], item: Any) -> str:
        text = column.cell(item)
        return text + "".join(mark.sign for mark in self._find_marks(column, item) if text)

    def _find_marks(self, column: Column[Any], item: Any) -> Sequence[Mark]:
        return () if self._shows_interval(column) else column.marks(item)

    def _shows_interval(self, column: Column[Any]) -> bool:
        return any(other.name == column.interval for other in self.columns)

    @property
    def legend(self) -> list[str]:
        """What stands below instead of intervals: how wide they are, and what marks mean."""
        bare = [column for column in self.columns if not self._shows_interval(column)]
        items = [item for group in self.items for item in group]
        marks = dict.fromkeys(m for column in bare for item in items for m in column.marks(item))
        found = [c.estimate(item) for c in bare if c.interval for item in items]
        known = [width for e in found if e and (width := e.half_width) is not None]
        ends = [format_half_width(w) for w in sorted(w for w in known if w <= TOO_NOISY)]
        widths = " to ".join(dict.fromkeys([*ends[:1], *ends[-1:]]))
        return [
            *([f"{100 * CONFIDENCE:g} % intervals: {widths}"] if widths else []),
            *(f"{mark.sign}: {mark.meaning}" for mark in marks),
        ]

    @property
    def notes(self) -> list[str]:
        """All that stands below it."""
        return [*self.remarks, *self.legend]

    @cached_property
    def values(self) -> list[list[list[Value]]]:
        """What stands behind each of them: a number in plain units, or the text itself; None where
        there is nothing."""
        return [[[c.find_value(item) for c in self.columns] for item in g] for g in self.items]


def group_by(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Those with the same key together, in order of appearance.

    >>> group_by([1, 2, 3, 4], lambda number: number % 2)
    [[1, 3], [2, 4]]
    """
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def divide(rows: Sequence[Row]) -> list[list[Row]]:
    """What stands in one table: rows of the same suite, axes, baseline and conditions."""
    return group_by(
        rows,
        lambda row: (*suite_and_axes(row.record), row.record.baseline, row.conditions_digest),
    )


def suite_and_axes(record: Record) -> tuple[str, frozenset[str]]:
    return record.suite, frozenset(record.params)


def choose_axes(records: Sequence[Record]) -> tuple[str, list[str]]:
    """The title of a table of these records, which says once what is the same in all of them, and
    the axes that have a column."""
    axes = list(dict.fromkeys(axis for record in records for axis in record.params))
    values = {a: {format_value(record.params.get(a, "")) for record in records} for a in axes}
    shown = [axis for axis in axes if len(values[axis]) > 1]
    fixed = [f"{axis}={values[axis].copy().pop()}" for axis in axes if len(values[axis]) == 1]
    return " ".join([records[0].suite, *fixed]), shown


def drop_empty(columns: Sequence[Column[Item]], items: Sequence[Item]) -> list[Column[Item]]:
    """Without the dispensable columns that are empty."""
    return [
        column
        for column in columns
        if column.kind not in DISPENSABLE or any(column.cell(item) for item in items)
    ]


FORMATS: dict[Unit, Callable[[Any], str]] = {
    "": format_value,
    "ns": format_time,
    "s": lambda time_s: format_time(time_s * 1e9),
    "bytes": format_bytes,
    "share": format_share,
    "ratio": format_ratio,
    "count": format_count,
    "integer": lambda number: f"{number:,.0f}",
}
"""How a value is written; rates have a function of their own."""
MEASURED_FORMATS: dict[Unit, Callable[[Estimate], str]] = {
    "ns": format_measured_time,
    "ratio": format_speedup,
}


def number(
    name: str,
    unit: Unit,
    find: Callable[[Item], Estimate | Value],
    kind: Kind = "number",
    **details: Any,
) -> Column[Item]:
    """A column of numbers, which are written as their unit asks for; measured ones have as many
    figures as their interval supports, and a mark where that says nothing. Details are other fields
    of the Column, where what follows from the unit does not do."""
    # Where the heading is the unit, cells have only its prefix.
    suffix = "" if unit == details.get("heading", name) else unit

    def cell(item: Item) -> str:
        found = find(item)
        if found is None or isinstance(found, str | bool):
            return "" if found is None else format_value(found)
        if isinstance(found, Estimate):
            return MEASURED_FORMATS[unit](found)
        return FORMATS[unit](found) if unit in FORMATS else format_rate(found, suffix).rstrip()

    def value(item: Item) -> Value:
        found = find(item)
        return found.value if isinstance(found, Estimate) else found

    def estimate(item: Item) -> Estimate | None:
        found = find(item)
        return found if isinstance(found, Estimate) else None

    fields: dict[str, Any] = {"cell": cell, "kind": kind, "value": value, "estimate": estimate}
    fields["marks"] = lambda item: mark_imprecise(estimate(item))
    # Written with its interval, a ratio needs no other column for that.
    own = {"interval": name} if unit == "ratio" else {}
    return Column(name, unit=unit, **{**fields, **own, **details})


def mark_imprecise(estimate: Estimate | None) -> Sequence[Mark]:
    """
    >>> mark_imprecise(Estimate(value=1.0, low=0.9, high=1.1, samples=50))
    ()
    >>> [mark.sign for mark in mark_imprecise(Estimate(value=1.0, low=0.1, high=9.0, samples=50))]
    ['?']
    """
    if estimate is None:
        return ()
    width = estimate.half_width
    return (IMPRECISE,) if width is None or width > TOO_NOISY else ()


def interval_column(find: Callable[[Item], Estimate | None]) -> Column[Item]:
    def cell(item: Item) -> str:
        estimate = find(item)
        return "" if estimate is None else format_interval(estimate, is_cell=True)

    return Column("±", cell, "interval", lambda item: getattr(find(item), "half_width", None))


def verdict_column(name: str, describe: Callable[[Item], str]) -> Column[Item]:
    """Its cells have the colour of the verdict that they begin with."""
    return Column(name, describe, "word", tone=lambda item: verdict_word(describe(item)))


def verdict_word(cell: str) -> str:
    """
    >>> verdict_word("faster, not comparable")
    'faster'
    """
    return cell.partition(",")[0]
