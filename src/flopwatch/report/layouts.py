"""Results laid out as others have published theirs, for reading the two side by side.

A layout is a function from rows to a Printout and a line in LAYOUTS. The command line reads that
table to list its choices, so that this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Printout:
    lines: list[str]
    """What is printed before the usual tables."""
    content: list[dict[str, Any]]
    """The same numbers, for ``--json``."""


def lay_out_plain(rows: Sequence[Row]) -> Printout:
    """The usual tables and nothing else."""
    from flopwatch.analysis import quality, summary

    trained = {id(q.row): quality.as_dict(q) for group in quality.assess(rows) for q in group}
    content = [{**summary.as_dict(row), "quality": trained.get(id(row))} for row in rows]
    return Printout(lines=[], content=content)


def lay_out_dyad(rows: Sequence[Row]) -> Printout:
    from flopwatch.report.dyad_layout import lay_out

    return lay_out(rows)


LAYOUTS: dict[str, Callable[[Sequence[Row]], Printout]] = {
    "plain": lay_out_plain,
    "dyad": lay_out_dyad,
}
