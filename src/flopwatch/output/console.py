"""What the command line prints with rich: tables of results, tables of anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flopwatch.analysis.summary import Row
from flopwatch.output.break_even_tables import make_break_even_sheets
from flopwatch.output.case_tables import (
    make_memory_sheets,
    make_quality_sheets,
    make_rank_sheets,
    make_whole_sheets,
)
from flopwatch.output.formats import format_cell
from flopwatch.output.tables import Sheet, draw, fit, make_sheets, measure_width
from flopwatch.output.units import printable, printable_lines, wrap_remarks

WIDE = 200
"""Columns where stdout is not a terminal: nobody's tables should be cut in a pipe."""


def print_rows(rows: Sequence[Row]) -> None:
    """Results, as tables that fit the terminal, with what there is to remark."""
    print_sheets(make_all_sheets(rows))
    if not rows:
        open_stderr().print("no records")


def make_all_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """The usual tables."""
    return [
        *make_sheets(rows),
        *make_rank_sheets(rows),
        *make_memory_sheets(rows),
        *make_whole_sheets(rows),
        *make_break_even_sheets(rows),
        *make_quality_sheets(rows),
    ]


def print_sheets(whole: Sequence[Sheet]) -> None:
    console = open_stdout()
    is_bound = _is_bound(console)
    sheets = [p for sheet in whole for p in fit(sheet, console.width, may_split=is_bound)]
    if not is_bound:
        console.width = max([console.width, *map(measure_width, sheets)])
    for position, sheet in enumerate(sheets):
        if position:
            console.print()
        console.print(draw(sheet, console.width))
        print_remarks(sheet.remarks)


def print_remarks(remarks: Sequence[str]) -> None:
    """Sentences below a table; in a pipe each on one line, for what searches them."""
    console = open_stdout()
    for line in wrap_remarks(remarks, console.width if _is_bound(console) else None):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(header_style="bold")
    for column in columns:
        table.add_column(escape(printable(column)), overflow="fold")
    for row in rows:
        table.add_row(*(escape(printable_lines(format_cell(value))) for value in row))
    open_stdout().print(table)


def open_stdout() -> Console:
    asked = read_columns()
    return Console(width=asked if asked or sys.stdout.isatty() else WIDE)


def open_stderr() -> Console:
    return Console(stderr=True)


def read_columns() -> int | None:
    """What the variable COLUMNS says, by which people tell programs how wide to print."""
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isascii() and told.isdigit() and int(told) > 0 else None


def _is_bound(console: Console) -> bool:
    """Whether nothing may be wider than the console."""
    return console.is_terminal or read_columns() is not None
