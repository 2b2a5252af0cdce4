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


MOST_NAMED = 3


def warn_of_imprecise(rows: Sequence[Row]) -> list[str]:
    """Published layouts have no place for intervals: what is not known well enough to be published
    is named next to them. What others have published has none, and is not judged."""
    from flopwatch.records.foreign import find_printed
    from flopwatch.suites.case import label

    poor = [row for row in rows if find_missing(row) and find_printed(row.record) is None]
    if not poor:
        return []
    named = [f"{row.record.variant} {label(row.record.params)}".rstrip() for row in poor]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return [
        "not to be published, too noisy or too few samples: "
        f"{', '.join(named[:MOST_NAMED])}{more}; the usual tables have the intervals"
    ]


def find_missing(row: Row) -> str:
    """Why the times of a case are no numbers to publish; empty where they are.

    A published layout says it where it has words anyway.
    """
    from flopwatch.output.tables import mark_imprecise
    from flopwatch.output.units import format_interval

    if row.total_ns is None or not mark_imprecise(row.total_ns):
        return ""
    return format_interval(row.total_ns, is_cell=True)


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
