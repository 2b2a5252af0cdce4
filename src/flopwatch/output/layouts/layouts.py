"""Results laid out as others have published theirs, for reading the two side by side.

A layout is a function from rows to a Printout and a line in LAYOUTS. The command line reads that
table to list its choices, so that this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row


Cell = str | float | None
"""None where there is nothing to say."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    title: str
    headings: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Printout:
    lines: list[str]
    """What is printed before the usual tables."""
    content: list[dict[str, Any]]
    """The same numbers, for ``--json``."""
    remarks: list[str] = field(default_factory=list)
    """What a reader should know of them, for stderr."""
    tables: list[PublishedTable] = field(default_factory=list)
    """What of it is tables, for ``--format``."""


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


def lay_out_dyad(rows: Sequence[Row]) -> Printout:
    from flopwatch.output.layouts.layout_dyad import lay_out

    return lay_out(rows)


def lay_out_switchback(rows: Sequence[Row]) -> Printout:
    from flopwatch.output.layouts.layout_switchback import lay_out

    return lay_out(rows)


def lay_out_cs336(rows: Sequence[Row]) -> Printout:
    from flopwatch.output.layouts.layout_cs336 import lay_out

    return lay_out(rows)


def lay_out_mosaic(rows: Sequence[Row]) -> Printout:
    from flopwatch.output.layouts.layout_mosaic import lay_out

    return lay_out(rows)


LAYOUTS: dict[str, Callable[[Sequence[Row]], Printout]] = {
    "plain": lay_out_plain,
    "dyad": lay_out_dyad,
    "switchback": lay_out_switchback,
    "cs336": lay_out_cs336,
    "mosaic": lay_out_mosaic,
}


AS_PUBLISHED = "published"
"""The layout that the suite declares, by itself."""


def draw_published_markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table as published: headings begin where their column does, cells end where it ends.

    >>> print(*draw_published_markdown([["Model", "MFU"], ["7b", "0.4216"]]), sep="\\n")
    | Model | MFU    |
    | ----- | ------ |
    |    7b | 0.4216 |
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *body = cells
    rows = [
        map(str.ljust, head, widths),
        ("-" * width for width in widths),
        *(map(str.rjust, row, widths) for row in body),
    ]
    return [f"| {' | '.join(row)} |" for row in rows]
