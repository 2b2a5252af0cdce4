"""Results laid out as others have published theirs, for reading the two side by side.

A layout is a module with a function ``lay_out`` from rows to a Printout, and a name in LAYOUTS. The
command line reads those names to list its choices, so that this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row
    from flopwatch.output.tables import Column, Sheet, Value

PLAIN = "plain"
LAYOUTS = (PLAIN, "dyad", "switchback", "cs336", "mosaic")
AS_PUBLISHED = "published"
"""The layout that the suite declares, by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Printout:
    lines: list[str]
    """What is printed before the usual tables."""
    content: list[dict[str, Any]]
    """The same numbers, for ``--json``."""
    remarks: list[str] = field(default_factory=list)
    """What a reader should know of them, for stderr."""
    tables: list[Sheet] = field(default_factory=list)
    """What of it is tables, for ``--format``."""


def make_printout(rows: Sequence[Row], layout: str) -> Printout:
    if layout == PLAIN:
        return lay_out_plain(rows)
    module = import_module(f"flopwatch.output.layouts.layout_{layout}")
    printout: Printout = module.lay_out(rows)
    return printout


def lay_out_plain(rows: Sequence[Row]) -> Printout:
    """The usual tables and nothing else."""
    from flopwatch.analysis import break_even, quality, summary
    from flopwatch.output.columns import describe_case

    trained = {id(q.row): quality.as_dict(q) for group in quality.assess(rows) for q in group}
    divided = {
        id(w.row): summary.parts_as_dict(w) for group in summary.compare_wholes(rows) for w in group
    }
    crossed = {
        id(row): break_even.as_dict(found)
        for found in break_even.find_break_evens(rows)
        for row in found.rows
    }
    content = [
        {
            **describe_case(row),
            "quality": trained.get(id(row)),
            "parts": divided.get(id(row)),
            "break_even": crossed.get(id(row)),
        }
        for row in rows
    ]
    return Printout(lines=[], content=content)


def make_published_sheet(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[Value]]
) -> Sheet:
    """The first column has words, the others numbers."""
    from flopwatch.output.tables import Column, Sheet

    def column(place: int) -> Column[Sequence[Value]]:
        return Column(
            headings[place],
            lambda row: format_published(row[place]),
            "number" if place else "word",
            lambda row: row[place],
        )

    columns = [column(place) for place in range(len(headings))]
    return Sheet(title=title, columns=columns, items=[rows], labels=1)


def format_published(cell: Value) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:g}"
