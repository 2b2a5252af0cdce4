"""What `flopwatch show` was asked for, and the answer, in any format.

Whatever is asked for, it is tables for people, a table of values for CSV, and objects for JSON; a
format takes the one that it can hold. Besides the usual tables and published layouts there are

- tables of chosen columns, from those that `columns` knows;
- pivots: one number of every case, with a row for each value of one column and a table column for
  each of another. No cell is a mean: what cases differ in besides has a table of its own for each
  of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.output.case_tables import make_all_sheets, make_sorted_sheets
from flopwatch.output.columns import NOT_COMPARABLE, Columns, find_column, list_columns
from flopwatch.output.compare_tables import name_case
from flopwatch.output.formats import (
    list_objects,
    write_csv,
    write_json,
    write_latex,
    write_markdown,
)
from flopwatch.output.layouts import AS_PUBLISHED, LAYOUTS, PLAIN, make_printout
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.selection import select_rows
from flopwatch.output.tables import Column, Mark, Sheet, Value, number
from flopwatch.output.units import plural
from flopwatch.suites.case import format_value


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    layout: str = PLAIN
    columns: str | None = None
    """Names of columns, with commas."""
    sort: str | None = None
    """The same; a minus means descending."""
    where: str | None = None
    """A condition in SQL."""
    pivot: str | None = None
    """``row=a,col=b,value=c``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Made only as far as a format needs it."""

    make_sheets: Callable[[], list[Sheet]]
    make_values: Callable[[], tuple[list[str], list[list[Value]]]]
    """Headings and rows."""
    make_objects: Callable[[], list[dict[str, Any]]]
    rows: Sequence[Row] | None = None
    """What a terminal answers about in sentences, with its sheets on request; None: sheets only."""
    lines: list[str] = field(default_factory=list)
    """What a terminal shows before the sheets."""
    remarks: list[str] = field(default_factory=list)
    """For stderr."""


WRITERS: dict[str, Callable[[Answer], str]] = {
    "markdown": lambda answer: write_markdown(answer.make_sheets()),
    "csv": lambda answer: write_csv(*answer.make_values()),
    "latex": lambda answer: write_latex(answer.make_sheets()),
    "json": lambda answer: write_json(answer.make_objects()),
}


def answer(rows: Sequence[Row], request: Request, form: str) -> Answer:
    if request.columns is not None and request.pivot is not None:
        raise UsageError("--columns and --pivot are two tables; take one")
    if request.layout != PLAIN and (request.columns or request.pivot):
        raise UsageError(
            f"--columns and --pivot make tables of their own; leave --layout {request.layout} out"
        )
    known = list_columns(rows)
    chosen = select_rows(rows, known, request.where, request.sort)
    if request.pivot is not None:
        return _answer_pivot(chosen, known, request.pivot, request.sort is not None)
    if request.columns is not None:
        return _answer_columns(chosen, known, request.columns)
    if request.layout != PLAIN:
        return _answer_layout(chosen, request.layout, form)
    is_sheets = form not in ("csv", "json")
    return _answer_plain(chosen, known, request, is_sheets)


def _answer_pivot(rows: Sequence[Row], known: Columns, asked: str, is_sorted: bool) -> Answer:
    pivot = make_pivot(rows, known, asked, is_sorted)
    return Answer(
        make_sheets=lambda: make_pivot_sheets(pivot),
        make_values=lambda: _list_pivot_values(pivot),
        make_objects=lambda: _list_pivot_objects(pivot),
        remarks=pivot.remarks,
    )


def _answer_columns(rows: Sequence[Row], known: Columns, columns: str) -> Answer:
    chosen = choose_columns(known, columns)
    names = [each.name for each in chosen]
    return Answer(
        make_sheets=lambda: [make_chosen_sheet(rows, known, chosen)] if rows else [],
        make_values=lambda: (names, _list_values(rows, chosen)),
        make_objects=lambda: list_objects(names, _list_values(rows, chosen)),
        remarks=[] if rows else ["no cases"],
    )


def _answer_plain(rows: Sequence[Row], known: Columns, request: Request, is_sheets: bool) -> Answer:
    make_sheets = make_all_sheets if request.sort is None else make_sorted_sheets
    remarks = [] if rows else ["no cases"]
    shown = rows
    if is_sheets and request.where is None:
        # Published parts would make thousands of lines.
        shown = [
            row for row in rows
            if not row.in_parts or "published" not in row.record.environment
        ]  # fmt: skip
    if len(shown) < len(rows):
        remarks = [
            f"{len(rows) - len(shown)} published times of parts are left out; --layout published "
            "has them, and --where selects some"
        ]
    return Answer(
        make_sheets=lambda: make_sheets(shown),
        make_values=lambda: (list(known), _list_values(rows, known.values())),
        make_objects=lambda: make_printout(rows, PLAIN).content,
        rows=shown,
        remarks=remarks,
    )


def _list_values(rows: Sequence[Row], chosen: Iterable[Column[Row]]) -> list[list[Value]]:
    return [[column.find_value(row) for column in chosen] for row in rows]


def _answer_layout(rows: Sequence[Row], asked: str, form: str) -> Answer:
    layout = _find_layout(rows) if asked == AS_PUBLISHED else asked
    printout = make_printout(rows, layout)
    below = [] if asked == AS_PUBLISHED else rows

    def find_tables() -> list[Sheet]:
        if not printout.tables:
            raise UsageError(
                f"the layout {layout!r} is no table, which {form} would need; take --format json, "
                "or leave --layout out"
            )
        return printout.tables

    def make_values() -> tuple[list[str], list[list[Value]]]:
        first, *others = find_tables()
        if others:
            raise UsageError(
                f"the layout {layout!r} is {len(others) + 1} tables here, and {form} holds one; "
                "choose one by --where, or take --format markdown"
            )
        return first.headings, first.values[0]

    return Answer(
        make_sheets=lambda: make_all_sheets(below) if form == "terminal" else find_tables(),
        make_values=make_values,
        make_objects=lambda: printout.content,
        lines=printout.lines,
        remarks=printout.remarks,
    )


def _find_layout(rows: Sequence[Row]) -> str:
    """The one that the suite of these cases has declared."""
    found = {row.record.layout for row in rows} & {*LAYOUTS}
    if len(found) != 1:
        raise UsageError(
            f"these results are of {len(found)} published layouts; choose from {', '.join(LAYOUTS)}"
        )
    return str(found.pop())


COMPARISONS = ("speedup", "speedup_low", "speedup_high", "limit")


def choose_columns(known: Columns, asked: str) -> list[Column[Row]]:
    """Those that ``a,b,c`` names, in that order."""
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if not names:
        raise UsageError(
            "--columns names none; write it as in --columns variant,total_ns,speedup, and "
            "--columns help lists all"
        )
    return [find_column(known, name) for name in names]


def make_chosen_sheet(rows: Sequence[Row], known: Columns, chosen: Sequence[Column[Row]]) -> Sheet:
    """One table, whatever the suites and conditions; it says what they are."""
    rest = [column for column in _list_identity(known) if column not in chosen]
    hidden = [column.name for column in _list_differing(rest, rows)]
    # The leading words identify the rows, however narrow a terminal is.
    is_label = [column.is_word and column.name != "verdict" for column in chosen]
    return Sheet(
        title=_describe_shared(rows, known, chosen),
        # Of what somebody has asked for, nothing is left out.
        columns=[replace(c, kind="number", has_words=c.is_word) for c in chosen],
        items=[rows],
        conditions=_describe_all_conditions(rows),
        remarks=[
            *([f"the cases differ also in {', '.join(hidden)}"] if hidden else []),
            *([] if known["verdict"] in chosen else _list_not_comparable(rows, chosen)),
        ],
        labels=max(1, [*is_label, False].index(False)),
    )


def _list_not_comparable(rows: Sequence[Row], chosen: Sequence[Column[Row]]) -> list[str]:
    """Of comparisons that a table shows without saying that they are not fair ones."""
    marked = [row for row in rows if row.differences]
    if not marked or not any(column.name in COMPARISONS for column in chosen):
        return []
    variants = ", ".join(dict.fromkeys(row.record.variant for row in marked))
    return [
        f"{variants}: {NOT_COMPARABLE} in {plural(len(marked), 'case')}; the usual tables say how"
    ]


def _list_identity(known: Columns) -> list[Column[Row]]:
    """What identifies a case: no two cases have all of it in common."""
    names = ("variant", "baseline", "conditions_id")
    return [
        known["suite"],
        *(column for column in known.values() if column.is_axis),
        *(known[name] for name in names),
    ]


def _list_differing(columns: Iterable[Column[Row]], rows: Sequence[Row]) -> list[Column[Row]]:
    """Those in which the rows differ."""
    return [column for column in columns if len({column.find_value(row) for row in rows}) > 1]


def _describe_shared(rows: Sequence[Row], known: Columns, shown: Sequence[Column[Row]]) -> str:
    """The title of a table: the suites, and what else is the same in all rows and not shown."""
    suites = ", ".join(dict.fromkeys(row.record.suite for row in rows))
    labels = [f for f in _list_identity(known) if f.is_axis or f.name == "variant"]
    texts = {f.title: {f.cell(row) for row in rows} for f in labels if f not in shown}
    shared = [f"{name}={text}" for name, (text, *more) in texts.items() if text and not more]
    return " ".join([suites, *shared])


def _describe_all_conditions(rows: Sequence[Row]) -> str:
    return "; or ".join(dict.fromkeys(describe_conditions(row.record) for row in rows))


ROLES = ("row", "col", "value")
EXAMPLE = "--pivot row=shape,col=tokens,value=speedup"
MOST_TABLES = 20
"""Nobody reads more; a machine may."""


Cells = Mapping[tuple[Value, Value], Row]
"""Cases by their values of row and col."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pivot:
    row: Column[Row]
    col: Column[Row]
    value: Column[Row]
    others: list[Column[Row]]
    """In what the cases differ besides."""
    cells: Mapping[tuple[Value, ...], Cells]
    """By values of the others."""
    rows: list[Value]
    cols: list[Value]
    known: Columns
    remarks: list[str]


def make_pivot(rows: Sequence[Row], known: Columns, asked: str, is_sorted: bool) -> Pivot:
    """`is_sorted`: rows and columns come as the cases do; otherwise numbers ascend."""
    chosen = _parse(asked, known)
    row, col, value = (chosen[role] for role in ROLES)
    placed = [r for r in rows if None not in (row.find_value(r), col.find_value(r))]
    # A baseline has no speedup; what failed is shown as such.
    shown = [r for r in placed if value.find_value(r) is not None or r.record.status != "ok"]
    rest = [column for column in _list_identity(known) if column not in (row, col)]
    others = _list_differing(rest, shown)
    cells: dict[tuple[Value, ...], dict[tuple[Value, Value], Row]] = {}
    for case in shown:
        place = row.find_value(case), col.find_value(case)
        table = cells.setdefault(tuple(column.find_value(case) for column in others), {})
        if place in table:
            raise UsageError(
                f"{row.name}={place[0]} and {col.name}={place[1]} are two cases, "
                f"{name_case(table[place].record)} and {name_case(case.record)}; choose one by "
                "--where"
            )
        table[place] = case
    return Pivot(
        row=row,
        col=col,
        value=value,
        others=others,
        cells=cells,
        rows=_order((row.find_value(case) for case in shown), is_sorted),
        cols=_order((col.find_value(case) for case in shown), is_sorted),
        known=known,
        remarks=[
            *_list_left(rows, (row, col)),
            *([] if shown else [f"no case has a value of {value.name}"]),
            *_list_not_comparable(shown, [value]),
        ],
    )


def _list_left(rows: Sequence[Row], chosen: Sequence[Column[Row]]) -> list[str]:
    """Of cases that have no place in the table."""
    counts = {column.name: sum(column.find_value(row) is None for row in rows) for column in chosen}
    return [
        f"left out: {plural(count, 'case')} with no {name}"
        for name, count in counts.items()
        if count
    ]


def make_pivot_sheets(pivot: Pivot) -> list[Sheet]:
    if len(pivot.cells) > MOST_TABLES:
        names = ", ".join(column.name for column in pivot.others)
        raise UsageError(
            f"this pivot would be {len(pivot.cells)} tables, since cases differ in {names} too; "
            "fix some of these, as in --where \"variant = 'dense'\", or take --format csv"
        )
    return [_make_pivot_sheet(pivot, cells) for cells in pivot.cells.values()]


WITH_VALUE = {
    "speedup": ("speedup_low", "speedup_high", "verdict"),
    "total_ns": ("total_low_ns", "total_high_ns"),
}
"""By a pivot's value: what machines get with it, since a number has no room for a mark. Others that
were measured, or follow from what was, come with the half width of its interval."""


def _list_pivots(pivot: Pivot) -> list[Pivot]:
    """The pivot, and the same of what goes with its value."""
    value = pivot.value
    if value.name in WITH_VALUE:
        added = [pivot.known[name] for name in WITH_VALUE[value.name]]
    else:
        cases = [case for cells in pivot.cells.values() for case in cells.values()]
        added = [_make_half_width(value)] if any(map(value.estimate, cases)) else []
    return [pivot, *(replace(pivot, value=column) for column in added)]


def _make_half_width(column: Column[Row]) -> Column[Row]:
    """Of its interval, relative to it: of what follows from a time, the same as the time's."""

    def find(row: Row) -> float | None:
        return getattr(column.estimate(row), "half_width", None)

    name = f"{column.name.removesuffix('_ns')}_half_width"
    return number(name, "share", find)


def _list_pivot_objects(pivot: Pivot) -> list[dict[str, Any]]:
    """For JSON: an object a row, with the values by column."""
    names = [column.name for column in (*pivot.others, pivot.row)]
    cols = [_name(col) for col in pivot.cols]
    pivots = _list_pivots(pivot)
    return [
        {
            **dict(zip(names, rows[0][0], strict=True)),
            **{
                one.value.name: dict(zip(cols, values, strict=True))
                for one, (_, values) in zip(pivots, rows, strict=True)
            },
        }
        for rows in zip(*map(_walk, pivots), strict=True)
    ]


def _list_pivot_values(pivot: Pivot) -> tuple[list[str], list[list[Value]]]:
    """For CSV: one table, in which the others have columns too. Headings and rows."""
    pivots = _list_pivots(pivot)
    names = [
        *(column.name for column in (*pivot.others, pivot.row)),
        *(f"{p.value.name} {p.col.name}={_name(col)}" for p in pivots for col in p.cols),
    ]
    rows = zip(*map(_walk, pivots), strict=True)
    return names, [[*row[0][0], *(v for _, values in row for v in values)] for row in rows]


def _walk(pivot: Pivot) -> Iterable[tuple[list[Value], list[Value]]]:
    """Every row of every table that has a case: what it is of, and its values by column."""
    for key, cells in pivot.cells.items():
        columns = [_pivot_column(pivot, cells, col) for col in pivot.cols]
        filled = {row for row, _ in cells}
        for row in pivot.rows:
            if row in filled:
                yield [*key, row], [column.find_value(row) for column in columns]


def _parse(asked: str, known: Columns) -> dict[str, Column[Row]]:
    parts = [part.partition("=") for part in asked.split(",")]
    named = {role.strip(): name.strip() for role, _, name in parts}
    if sorted(named) != sorted(ROLES) or len(parts) != len(ROLES):
        raise UsageError(f"--pivot needs row, col and value, once each, as in {EXAMPLE}")
    if len({name.casefold() for name in named.values()}) < len(ROLES):
        raise UsageError(f"--pivot has the same column in two places; write it as in {EXAMPLE}")
    return {role: find_column(known, name) for role, name in named.items()}


def _make_pivot_sheet(pivot: Pivot, cells: Cells) -> Sheet:
    rows = [row for row in pivot.rows if any((row, col) in cells for col in pivot.cols)]
    cols = [col for col in pivot.cols if any((row, col) in cells for row in rows)]
    cases = list(cells.values())
    shared = _describe_shared(cases, pivot.known, [pivot.row, pivot.col])
    heading = f"{pivot.row.title} \\ {pivot.col.title}"
    return Sheet(
        title=f"{shared}, {pivot.value.title} by {pivot.col.title}",
        columns=[
            Column(heading, _name, "word", lambda row: row),
            *(_pivot_column(pivot, cells, col) for col in cols),
        ],
        items=[rows],
        conditions=_describe_all_conditions(cases),
        labels=1,
    )


def _pivot_column(pivot: Pivot, cells: Cells, col: Value) -> Column[Value]:
    def cell(row: Value) -> str:
        case = cells.get((row, col))
        if case is None:
            return ""
        text = (pivot.value.brief or pivot.value.cell)(case)
        return text or (case.record.status if case.record.status != "ok" else "")

    def marks(row: Value) -> Sequence[Mark]:
        case = cells.get((row, col))
        return () if case is None else pivot.value.marks(case)

    def estimate(row: Value) -> Estimate | None:
        case = cells.get((row, col))
        return None if case is None else pivot.value.estimate(case)

    def value(row: Value) -> Value:
        case = cells.get((row, col))
        return None if case is None else pivot.value.find_value(case)

    def tone(row: Value) -> str | None:
        """Speedups have the colours of their verdicts."""
        case = cells.get((row, col))
        return case.verdict if case and pivot.value.name == "speedup" else None

    return Column(
        _name(col),
        cell,
        value=value,
        has_words=pivot.value.is_word,
        tone=tone,
        interval=f"interval of {pivot.value.name}",  # there is no such column: it is said below
        marks=marks,
        estimate=estimate,
    )


def _name(value: Value) -> str:
    return "" if value is None else format_value(value)


def _order(values: Iterable[Value], is_sorted: bool) -> list[Value]:
    seen = list(dict.fromkeys(values))
    numbers = [value for value in seen if isinstance(value, int | float)]
    return seen if is_sorted or len(numbers) < len(seen) else [*sorted(numbers)]
