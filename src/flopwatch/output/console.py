"""What the command line prints with rich: tables of results, tables of anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from flopwatch import env
from flopwatch.analysis.summary import Row
from flopwatch.output.case_tables import make_all_sheets
from flopwatch.output.formats import make_value_sheet
from flopwatch.output.tables import Sheet, draw, fit, measure_width
from flopwatch.output.units import wrap_remarks

WIDE = 200
"""Columns where stdout is not a terminal: nobody's tables should be cut in a pipe."""


def print_rows(rows: Sequence[Row]) -> None:
    """Results, as tables that fit the terminal, with what there is to remark."""
    print_sheets(make_all_sheets(rows))
    if not rows:
        open_stderr().print("no records")


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
    """A table of values of which nothing is known."""
    print_sheets([make_value_sheet(columns, rows)])


def open_stdout() -> Console:
    asked = read_columns()
    return Console(width=asked if asked or sys.stdout.isatty() else WIDE)


def open_stderr() -> Console:
    return Console(stderr=True)


def read_columns() -> int | None:
    """The width that the variable COLUMNS asks for."""
    asked = env.read("COLUMNS")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) > 0 else None


def _is_bound(console: Console) -> bool:
    """Whether nothing may be wider than the console."""
    return console.is_terminal or read_columns() is not None
