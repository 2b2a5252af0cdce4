"""Tables of anything: columns, the sheet that they make of items, and the sheet in a terminal.

The columns of results are in `columns`; other tables list theirs where they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Any, Generic, Literal, TypeVar

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.output.units import (
    format_bytes,
    format_count,
    format_interval,
    format_measured_time,
    format_rate,
    format_ratio,
    format_share,
    format_speedup,
    format_time,
    printable,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import format_value

VERDICT_STYLES = {"faster": "green", "slower": "red", "unclear": "yellow", "same": ""}

MOST_LINES = 2
"""Of a heading."""
LEAST_WORDS = 24
"""Characters that a column of words has at least, if it has so many: a name in pieces of three is
no name."""


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
    is_axis: bool = False
    has_words: bool = False
    """Whether it has words though its kind says how important it is."""
    in_table: Callable[[Sequence[Item]], bool] = lambda _: True
    """Whether the usual table of these has it; otherwise it is shown on request."""

    def find_value(self, item: Item) -> Value:
        return self.cell(item) or None if self.value is None else self.value(item)

    @property
    def title(self) -> str:
        return self.heading or self.name

    @property
    def is_word(self) -> bool:
        return self.has_words or self.kind == "word"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """One suite's rows as text, for whatever will draw them."""

    title: str
    conditions: str
    """How it was measured: what would have to be the same for a fair comparison."""
    columns: list[str]
    text_columns: int
    """How many leading columns are labels, by which rows are told apart."""
    words: list[bool]
    """For each column, whether it is one of words; the others are numbers."""
    optional: list[list[int]]
    """Positions of the columns that a narrow terminal can do without, the least important first;
    those in one list go together."""
    groups: list[list[list[str]]]
    """Groups of rows of cells. All words but the last, the variant, are the same in a group."""
    values: list[list[list[Value]]] = field(default_factory=list)
    """What stands behind every text of `groups`: a number in plain units, or the text itself. None
    where there is nothing."""
    tones: list[list[list[str]]] = field(default_factory=list)
    """For every cell, the verdict whose colour it has; without them, verdicts have their own."""
    remarks: list[str]
    """Failures and warnings, one sentence each."""

    def __post_init__(self) -> None:
        if not self.values:
            texts = [[[text or None for text in cells] for cells in group] for group in self.groups]
            object.__setattr__(self, "values", texts)


def divide(rows: Sequence[Row]) -> list[list[Row]]:
    """What stands in one table: rows of the same suite, axes, baseline and conditions."""
    chosen: dict[tuple[str, frozenset[str], str, str], list[Row]] = {}
    for row in rows:
        record = row.record
        like = (record.suite, frozenset(record.params), record.baseline, row.conditions_digest)
        chosen.setdefault(like, []).append(row)
    return list(chosen.values())


def choose_axes(records: Sequence[Record]) -> tuple[str, list[str]]:
    """The title of a table of these records, which says once what is the same in all of them, and
    the axes that have a column."""
    axes = list(dict.fromkeys(axis for record in records for axis in record.params))
    values = {a: {format_value(record.params.get(a, "")) for record in records} for a in axes}
    shown = [axis for axis in axes if len(values[axis]) > 1]
    fixed = [f"{axis}={values[axis].copy().pop()}" for axis in axes if len(values[axis]) == 1]
    return " ".join([records[0].suite, *fixed]), shown


def lay_out(columns: Sequence[Column[Item]], groups: Sequence[Sequence[Item]]) -> dict[str, Any]:
    """The fields of a Sheet that follow from its columns."""
    words = [column.is_word for column in columns]
    return {
        "columns": [column.title for column in columns],
        "text_columns": min([*words, False].index(False), len(columns) - 1),
        "words": words,
        "optional": [
            [position for position, column in enumerate(columns) if column.kind == kind]
            for kind in DISPENSABLE
        ],
        "groups": [[[column.cell(item) for column in columns] for item in g] for g in groups],
        "values": [[[column.find_value(item) for column in columns] for item in g] for g in groups],
    }


def drop_empty(columns: Sequence[Column[Item]], items: Sequence[Item]) -> list[Column[Item]]:
    """Without the dispensable columns that are empty."""
    return [
        column
        for column in columns
        if column.kind not in DISPENSABLE or any(column.cell(item) for item in items)
    ]


def time_column(
    name: str, find: Callable[[Item], Estimate | None], kind: Kind = "number"
) -> Column[Item]:
    return Column(
        name, lambda item: format_measured_time(find(item)), kind, lambda item: middle(find(item))
    )


def speedup_column(
    name: str, find: Callable[[Item], Estimate | None], kind: Kind = "number"
) -> Column[Item]:
    def cell(item: Item) -> str:
        speedup = find(item)
        return "" if speedup is None else format_speedup(speedup)

    return Column(name, cell, kind, lambda item: middle(find(item)))


def share_column(
    name: str, find: Callable[[Item], float | None], kind: Kind = "number"
) -> Column[Item]:
    return Column(name, lambda item: format_share(find(item)), kind, find)


def bytes_column(
    name: str, find: Callable[[Item], float | None], kind: Kind = "number"
) -> Column[Item]:
    def cell(item: Item) -> str:
        size_bytes = find(item)
        return "" if size_bytes is None else format_bytes(size_bytes)

    return Column(name, cell, kind, find)


def count_column(name: str, find: Callable[[Item], float], kind: Kind = "number") -> Column[Item]:
    return Column(name, lambda item: format_count(find(item)), kind, find)


def plain_time_column(
    name: str, find_ns: Callable[[Item], float], kind: Kind = "number"
) -> Column[Item]:
    """Of a time without an interval."""
    return Column(name, lambda item: format_time(find_ns(item)), kind, find_ns)


def rate_column(
    name: str, find: Callable[[Item], float | None], kind: Kind, unit: str = ""
) -> Column[Item]:
    """Where the heading is the unit, cells have only its prefix."""
    return Column(name, lambda item: format_rate(find(item), unit).rstrip(), kind, find)


def limit_column(find: Callable[[Item], float | None]) -> Column[Item]:
    return Column("limit", lambda item: format_ratio(find(item)), "limit", find)


def interval_column(find: Callable[[Item], Estimate | None]) -> Column[Item]:
    def cell(item: Item) -> str:
        estimate = find(item)
        return "" if estimate is None else format_interval(estimate)

    def value(item: Item) -> float | None:
        estimate = find(item)
        return None if estimate is None else estimate.half_width

    return Column("±", cell, "interval", value)


def middle(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def verdict_word(cell: str) -> str:
    """
    >>> verdict_word("faster, not comparable")
    'faster'
    """
    return cell.partition(",")[0]


def fit(sheet: Sheet, width: int, *, may_split: bool = True) -> list[Sheet]:
    """The sheet with as many of its optional columns as the width has room for; where that is not
    enough, a sheet for every group, with what its rows share in the title; where that is not
    enough either, one below the other, each with some of the numbers."""
    shown = _choose_columns(sheet, 0, width)
    shared = _count_shared(sheet)
    if _width(sheet, shown) <= width or shared == 0:
        parts = [_narrow(sheet, shown)]
    else:
        parts = _divide(sheet, shared, width)
    return [piece for part in parts for piece in _split(part, width)] if may_split else parts


def _choose_columns(sheet: Sheet, first: int, width: int) -> list[int]:
    """Positions, from `first` on: the optional ones by their importance, as long as they fit."""
    optional = {position for positions in sheet.optional for position in positions}
    shown = [p for p in range(first, len(sheet.columns)) if p not in optional]
    for positions in reversed(sheet.optional):
        more = sorted([*shown, *positions])
        shown = more if _width(sheet, more) <= width else shown
    return shown


def _count_shared(sheet: Sheet) -> int:
    """How many leading columns of words have one value in each group; never the last of them, by
    which its rows are told apart."""
    for position in range(sheet.text_columns - 1):
        if any(len({cells[position] for cells in group}) > 1 for group in sheet.groups):
            return position
    return max(sheet.text_columns - 1, 0)


def _divide(sheet: Sheet, shared: int, width: int) -> list[Sheet]:
    narrow = _narrow(sheet, _choose_columns(sheet, shared, width))
    titles = [
        " ".join([sheet.title, *map("=".join, zip(sheet.columns[:shared], group[0], strict=False))])
        for group in sheet.groups
    ]
    tones = narrow.tones or [[] for _ in narrow.groups]
    parts = [
        replace(
            narrow,
            title=title,
            groups=[group],
            values=[values],
            tones=[tone] if tone else [],
            conditions="",
            remarks=[],
        )
        for title, group, values, tone in zip(
            titles, narrow.groups, narrow.values, tones, strict=True
        )
    ]
    parts[-1] = replace(parts[-1], conditions=sheet.conditions, remarks=sheet.remarks)
    return parts


def _split(sheet: Sheet, width: int) -> list[Sheet]:
    """Sheets that have the labels of the rows and a part of the other columns each."""
    widths, least = _measure(sheet), _measure_least(sheet)
    places = range(len(sheet.columns))
    labels = range(sheet.text_columns)
    others = [p for p in places if p not in labels]
    if _add_widths(least[p] for p in places) <= width or len(others) < 2:
        return [sheet]
    is_roomy = _add_widths([*widths[: len(labels)], max(least[p] for p in others)]) <= width
    of_labels = [(widths if is_roomy else least)[p] for p in labels]
    blocks: list[list[int]] = [[]]
    for p in others:
        more = [*of_labels, *(least[q] for q in blocks[-1]), least[p]]
        if blocks[-1] and _add_widths(more) > width:
            blocks.append([])
        blocks[-1].append(p)
    # Without its last column a sheet would not know its verdicts any more.
    whole = replace(sheet, tones=sheet.tones or _find_tones(sheet))
    parts = [_narrow(whole, [*labels, *block]) for block in blocks]
    last = len(parts) - 1
    return [
        replace(
            part,
            title=f"{sheet.title}, continued" if number else sheet.title,
            conditions=sheet.conditions if number == last else "",
            remarks=sheet.remarks if number == last else [],
        )
        for number, part in enumerate(parts)
    ]


def _narrow(sheet: Sheet, shown: Sequence[int]) -> Sheet:
    """The sheet with these columns only."""
    return replace(
        sheet,
        columns=[sheet.columns[position] for position in shown],
        text_columns=sum(position < sheet.text_columns for position in shown),
        optional=[],
        groups=[[[cells[p] for p in shown] for cells in group] for group in sheet.groups],
        values=[[[cells[p] for p in shown] for cells in group] for group in sheet.values],
        words=[sheet.words[p] for p in shown],
        tones=[[[cells[p] for p in shown] for cells in group] for group in sheet.tones],
    )


def measure_width(sheet: Sheet) -> int:
    return _width(sheet, range(len(sheet.columns)))


def _width(sheet: Sheet, shown: Sequence[int]) -> int:
    widths = _measure(sheet)
    return _add_widths(widths[position] for position in shown)


def _add_widths(widths: Iterable[int]) -> int:
    """Of a table with columns of these widths."""
    return 1 + sum(3 + width for width in widths)


def _measure(sheet: Sheet) -> list[int]:
    """How wide each column is, with nothing broken but headings."""
    rows = [cells for group in sheet.groups for cells in group]
    return [
        max(len(text) for text in (*heading, *(cells[position] for cells in rows)))
        for position, heading in enumerate(break_headings(sheet))
    ]


def _measure_least(sheet: Sheet) -> list[int]:
    """How narrow each may get: words may be broken between them, and long ones inside."""
    rows = [cells for group in sheet.groups for cells in group]
    texts = [[sheet.columns[p], *(cells[p] for cells in rows)] for p in range(len(sheet.columns))]
    longest = [max((len(word) for text in some for word in text.split()), default=1)
               for some in texts]  # fmt: skip
    return [
        min(width, word, LEAST_WORDS) if is_word else width
        for width, word, is_word in zip(_measure(sheet), longest, sheet.words, strict=True)
    ]


def _share_out(sheet: Sheet, width: int) -> list[int]:
    """Widths of the columns in a table that is no wider, if that can be: the widest words give
    first, and those that are no labels before those that are."""
    widths, least = _measure(sheet), _measure_least(sheet)
    labels = range(sheet.text_columns)
    for some in ([p for p in range(len(widths)) if p not in labels], labels):
        while _add_widths(widths) > width:
            wide = [p for p in some if widths[p] > least[p]]
            if not wide:
                break
            widths[max(wide, key=lambda p: widths[p])] -= 1
    return widths


def break_headings(sheet: Sheet) -> list[list[str]]:
    """For each column, its heading in lines: two where it is longer than all that stands below."""
    rows = [cells for group in sheet.groups for cells in group]
    widest = [max((len(cells[p]) for cells in rows), default=0) for p in range(len(sheet.columns))]
    return [_break(text, width) for text, width in zip(sheet.columns, widest, strict=True)]


def _break(heading: str, width: int) -> list[str]:
    """
    >>> _break("kept for backward", 8), _break("peak memory", 20)
    (['kept for', 'backward'], ['peak memory'])
    """
    narrowest = max(width, *(len(word) for word in heading.split()), 1)
    broken = (wrap(heading, w) or [""] for w in range(narrowest, max(len(heading), narrowest) + 1))
    return next(lines for lines in broken if len(lines) <= MOST_LINES)


def draw(sheet: Sheet, width: int | None = None) -> Group:
    """Title and conditions may be wider than the table; without a width, it is as wide as it is."""
    conditions = [_text(sheet.conditions, "dim italic")] if sheet.conditions else []
    widths = _measure(sheet) if width is None else _share_out(sheet, width)
    title = [_text(sheet.title, "bold")] if sheet.title else []
    return Group(*title, _draw_table(sheet, widths), *conditions)


def _draw_table(sheet: Sheet, widths: Sequence[int]) -> Table:
    table = Table(header_style="bold", box=box.HORIZONTALS)
    words, whole = sheet.words, _measure(sheet)
    for position, column in enumerate(break_headings(sheet)):
        is_folded = widths[position] < whole[position]
        # Words that are no labels may take a second line before anything is cut off.
        may_fold = words[position] and position >= sheet.text_columns
        table.add_column(
            Text("\n".join(map(printable, column))),
            justify="left" if words[position] else "right",
            no_wrap=not (is_folded or may_fold),
            width=widths[position] if is_folded else None,
            overflow="fold" if is_folded else "ellipsis",
        )
    has_groups = any(len(group) > 1 for group in sheet.groups)  # else a line after every row
    for group, tones in zip(sheet.groups, sheet.tones or _find_tones(sheet), strict=True):
        for cells, verdicts in zip(group, tones, strict=True):
            styles = (VERDICT_STYLES.get(verdict, "") for verdict in verdicts)
            table.add_row(*map(_text, cells, styles))
        if has_groups:
            table.add_section()
    return table


def _find_tones(sheet: Sheet) -> list[list[list[str]]]:
    """A verdict has its colour: words of the last column, or of one that is called so."""
    last = len(sheet.columns) - 1
    places = {
        position
        for position, name in enumerate(sheet.columns)
        if sheet.words[position] and (name == "verdict" or position == last)
    }
    return [
        [[verdict_word(text) if p in places else "" for p, text in enumerate(cells)] for cells in g]
        for g in sheet.groups
    ]


def _text(text: str, style: str = "") -> Text:
    """A Text object, since a name from a record might look like rich's markup."""
    return Text(printable(text), style=style)
