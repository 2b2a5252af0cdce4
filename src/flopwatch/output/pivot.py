"""One number of every case, by two of its chosen: a row for each value of one, a column for each of
the other.

No cell is a mean. What cases differ in besides has a table of its own for each of its values.

Tables whose columns somebody has chosen, from the known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.output.columns import NOT_COMPARABLE, Columns, find_column
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import Column, Sheet, Value, lay_out
from flopwatch.output.units import plural
from flopwatch.suites.case import format_value, label

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
    hidden = list_hidden(rows, known, chosen)
    return Sheet(
        **{
            **lay_out(chosen, [rows]),
            "title": describe_shared(rows, known, chosen),
            "conditions": describe_all_conditions(rows),
            "text_columns": count_labels(chosen),
            "optional": [],
            "remarks": [
                *([f"the cases differ also in {', '.join(hidden)}"] if hidden else []),
                *([] if known["verdict"] in chosen else list_not_comparable(rows, chosen)),
            ],
        }
    )


def count_labels(chosen: Sequence[Column[Row]]) -> int:
    """The words in front, which tell the rows apart, however narrow a terminal is."""
    words = [column.is_word and column.name != "verdict" for column in chosen]
    return max(1, words.index(False) if False in words else len(words))


def list_not_comparable(rows: Sequence[Row], chosen: Sequence[Column[Row]]) -> list[str]:
    """Of comparisons that a table shows without saying that they are not fair ones."""
    marked = [row for row in rows if row.differences]
    if not marked or not any(column.name in COMPARISONS for column in chosen):
        return []
    variants = ", ".join(dict.fromkeys(row.record.variant for row in marked))
    return [
        f"{variants}: {NOT_COMPARABLE} in {plural(len(marked), 'case')}; the usual tables say how"
    ]


def list_identity(known: Columns) -> list[Column[Row]]:
    """What tells cases apart: no two of them have all of it in common."""
    names = ("variant", "baseline", "conditions_id")
    return [
        known["suite"],
        *(column for column in known.values() if column.is_axis),
        *(known[name] for name in names),
    ]


def list_hidden(rows: Sequence[Row], known: Columns, shown: Sequence[Column[Row]]) -> list[str]:
    """In what the rows differ that is not shown."""
    chosen = [column for column in list_identity(known) if column not in shown]
    return [column.name for column in chosen if len({column.find_value(row) for row in rows}) > 1]


def describe_shared(rows: Sequence[Row], known: Columns, shown: Sequence[Column[Row]]) -> str:
    """The title of a table: the suites, and what else is the same in all rows and not shown."""
    suites = ", ".join(dict.fromkeys(row.record.suite for row in rows))
    told = [f for f in list_identity(known) if f.is_axis or f.name == "variant"]
    texts = {f.title: {f.cell(row) for row in rows} for f in told if f not in shown}
    shared = [f"{name}={text}" for name, (text, *more) in texts.items() if text and not more]
    return " ".join([suites, *shared])


def describe_all_conditions(rows: Sequence[Row]) -> str:
    return "; or ".join(dict.fromkeys(describe_conditions(row.record) for row in rows))


def list_values(rows: Sequence[Row], chosen: Sequence[Column[Row]]) -> list[list[Value]]:
    """For formats that machines read."""
    return [[column.find_value(row) for column in chosen] for row in rows]


ROLES = ("row", "col", "value")
EXAMPLE = "--pivot row=shape,col=tokens,value=speedup"
MOST_TABLES = 20
"""Nobody reads more; a machine may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pivot:
    row: Column[Row]
    col: Column[Row]
    value: Column[Row]
    others: list[Column[Row]]
    """In what the cases differ besides."""
    cells: Mapping[tuple[Value, ...], Mapping[tuple[Value, Value], Row]]
    """By values of the others, then of row and col."""
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
    rest = [column for column in list_identity(known) if column not in (row, col)]
    others = [column for column in rest if len({column.find_value(r) for r in shown}) > 1]
    cells: dict[tuple[Value, ...], dict[tuple[Value, Value], Row]] = {}
    for case in shown:
        place = row.find_value(case), col.find_value(case)
        table = cells.setdefault(tuple(column.find_value(case) for column in others), {})
        if place in table:
            raise UsageError(
                f"{row.name}={place[0]} and {col.name}={place[1]} are two cases, "
                f"{_name_case(table[place])} and {_name_case(case)}; choose one by --where"
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
            *list_not_comparable(shown, [value]),
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
    return [_make_sheet(pivot, cells) for cells in pivot.cells.values()]


def list_pivot_records(pivot: Pivot) -> list[dict[str, Any]]:
    """For JSON: an object a row, with the values by column."""
    return [
        {
            **{column.name: value for column, value in zip(pivot.others, key, strict=True)},
            pivot.row.name: row,
            pivot.value.name: {
                _name(col): _find(pivot, cells.get((row, col))) for col in pivot.cols
            },
        }
        for key, cells, row in _walk(pivot)
    ]


def list_pivot_values(pivot: Pivot) -> tuple[list[str], list[list[Value]]]:
    """For CSV: one table, in which the others have columns too. Headings and rows."""
    names = [
        *(column.name for column in pivot.others),
        pivot.row.name,
        *(f"{pivot.value.name} {pivot.col.name}={_name(col)}" for col in pivot.cols),
    ]
    rows = [
        [*key, row, *(_find(pivot, cells.get((row, col))) for col in pivot.cols)]
        for key, cells, row in _walk(pivot)
    ]
    return names, rows


def _walk(
    pivot: Pivot,
) -> Iterable[tuple[tuple[Value, ...], Mapping[tuple[Value, Value], Row], Value]]:
    """Every row of every table that has a case."""
    for key, cells in pivot.cells.items():
        filled = {row for row, _ in cells}
        for row in pivot.rows:
            if row in filled:
                yield key, cells, row


def _parse(asked: str, known: Columns) -> dict[str, Column[Row]]:
    parts = [part.partition("=") for part in asked.split(",")]
    named = {role.strip(): name.strip() for role, _, name in parts}
    if sorted(named) != sorted(ROLES) or len(parts) != len(ROLES):
        raise UsageError(f"--pivot needs row, col and value, once each, as in {EXAMPLE}")
    if len({name.casefold() for name in named.values()}) < len(ROLES):
        raise UsageError(f"--pivot has the same column in two places; write it as in {EXAMPLE}")
    return {role: find_column(known, name) for role, name in named.items()}


def _make_sheet(pivot: Pivot, cells: Mapping[tuple[Value, Value], Row]) -> Sheet:
    rows = [row for row in pivot.rows if any((row, col) in cells for col in pivot.cols)]
    cols = [col for col in pivot.cols if any((row, col) in cells for row in rows)]
    cases = list(cells.values())
    shared = describe_shared(cases, pivot.known, [pivot.row, pivot.col])
    return Sheet(
        title=f"{shared}, {pivot.value.title} by {pivot.col.title}",
        conditions=describe_all_conditions(cases),
        columns=[f"{pivot.row.title} \\ {pivot.col.title}", *map(_name, cols)],
        text_columns=1,
        words=[True, *[pivot.value.is_word] * len(cols)],
        optional=[],
        groups=[
            [[_name(row), *(_form(pivot, cells.get((row, col))) for col in cols)] for row in rows]
        ],
        tones=_find_tones(pivot, cells, rows, cols),
        values=[[[row, *(_find(pivot, cells.get((row, col))) for col in cols)] for row in rows]],
        remarks=[],
    )


def _find_tones(
    pivot: Pivot,
    cells: Mapping[tuple[Value, Value], Row],
    rows: Sequence[Value],
    cols: Sequence[Value],
) -> list[list[list[str]]]:
    """Speedups have the colours of their verdicts."""
    if pivot.value.name != "speedup":
        return []
    cases = [[cells.get((row, col)) for col in cols] for row in rows]
    return [[["", *((case and case.verdict) or "" for case in line)] for line in cases]]


def _form(pivot: Pivot, case: Row | None) -> str:
    if case is None:
        return ""
    text = (pivot.value.brief or pivot.value.cell)(case)
    return text or (case.record.status if case.record.status != "ok" else "")


def _find(pivot: Pivot, case: Row | None) -> Value:
    return None if case is None else pivot.value.find_value(case)


def _name(value: Value) -> str:
    return "" if value is None else format_value(value)


def _name_case(case: Row) -> str:
    return f"{case.record.variant} {label(case.record.params)}"


def _order(values: Iterable[Value], is_sorted: bool) -> list[Value]:
    seen = list(dict.fromkeys(values))
    numbers = [value for value in seen if isinstance(value, int | float)]
    return seen if is_sorted or len(numbers) < len(seen) else [*sorted(numbers)]
