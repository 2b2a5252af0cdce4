"""What `flopwatch show` was asked for, and the answer, in any format.

Whatever is asked for, it is tables for people, a table of values for CSV, and objects for JSON; a
format takes the one that it can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.output.case_tables import make_all_sheets, make_sorted_sheets
from flopwatch.output.columns import Columns, list_columns
from flopwatch.output.formats import (
    list_objects,
    write_csv,
    write_json,
    write_latex,
    write_markdown,
)
from flopwatch.output.layouts.layouts import AS_PUBLISHED, LAYOUTS, Cell, PublishedTable
from flopwatch.output.pivot import (
    choose_columns,
    list_pivot_records,
    list_pivot_values,
    list_values,
    make_chosen_sheet,
    make_pivot,
    make_pivot_sheets,
)
from flopwatch.output.selection import select_rows
from flopwatch.output.tables import Sheet, Value

PLAIN = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    layout: str = PLAIN
    columns: str | None = None
    """Names of chosen, with commas."""
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
        make_values=lambda: list_pivot_values(pivot),
        make_objects=lambda: list_pivot_records(pivot),
        remarks=pivot.remarks,
    )


def _answer_columns(rows: Sequence[Row], known: Columns, columns: str) -> Answer:
    chosen = choose_columns(known, columns)
    names = [each.name for each in chosen]
    return Answer(
        make_sheets=lambda: [make_chosen_sheet(rows, known, chosen)] if rows else [],
        make_values=lambda: (names, list_values(rows, chosen)),
        make_objects=lambda: list_objects(names, list_values(rows, chosen)),
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
        make_values=lambda: (list(known), list_values(rows, list(known.values()))),
        make_objects=lambda: LAYOUTS[PLAIN](rows).content,
        remarks=remarks,
    )


def _answer_layout(rows: Sequence[Row], asked: str, form: str) -> Answer:
    layout = _find_layout(rows) if asked == AS_PUBLISHED else asked
    printout = LAYOUTS[layout](rows)
    below = [] if asked == AS_PUBLISHED else rows

    def find_tables() -> list[PublishedTable]:
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
        return first.headings, [[*row] for row in first.rows]

    return Answer(
        make_sheets=lambda: (
            make_all_sheets(below) if form == "terminal" else [*map(_make_sheet, find_tables())]
        ),
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


def _make_sheet(table: PublishedTable) -> Sheet:
    return Sheet(
        title=table.title,
        conditions="",
        columns=table.headings,
        text_columns=1,
        words=[True] + [False] * (len(table.headings) - 1),
        optional=[],
        groups=[[[_form(cell) for cell in row] for row in table.rows]],
        values=[[[*row] for row in table.rows]],
        remarks=[],
    )


def _form(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:g}"
