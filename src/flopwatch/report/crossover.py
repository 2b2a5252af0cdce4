"""From which batch on variants pay, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.crossover import (
    AXIS,
    Crossover,
    count_tokens,
    find_crossovers,
    other_params,
)
from flopwatch.analysis.statistics import Verdict
from flopwatch.analysis.summary import Row
from flopwatch.report.columns import UNLIKE, Column, axis_column
from flopwatch.report.tables import Sheet, choose_axes, divide, lay_out
from flopwatch.report.units import format_ratio

BELOW: dict[Verdict, str] = {
    "slower": "it is slower",
    "same": "it is as fast",
    "unclear": "that is unclear",
}
"""How a batch just below those that pay is told."""


def make_crossover_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every table of cases that has variants at several batches."""
    return [
        _make_sheet(alike, found) for alike in divide(rows) if (found := find_crossovers(alike))
    ]


def group_crossovers(crossovers: Sequence[Crossover]) -> list[list[Crossover]]:
    """Variants of the same shape, dtype and so on together."""
    groups: dict[str, list[Crossover]] = {}
    for crossover in crossovers:
        groups.setdefault(other_params(crossover.rows[0]), []).append(crossover)
    return list(groups.values())


def list_tokens(crossovers: Sequence[Crossover]) -> list[int]:
    return sorted({count_tokens(row) for crossover in crossovers for row in crossover.rows})


def _make_sheet(rows: Sequence[Row], crossovers: Sequence[Crossover]) -> Sheet:
    title, axes = choose_axes(rows)
    columns: list[Column[Crossover]] = [
        *(axis_column(axis, lambda crossover: crossover.rows[0]) for axis in axes if axis != AXIS),
        Column("variant", lambda crossover: crossover.rows[0].record.variant, "word"),
        *map(_tokens_column, list_tokens(crossovers)),
        Column("pays", describe_crossover, "word"),
    ]
    return Sheet(
        title=f"{title}, speedup by {AXIS}",
        conditions=f"pays: by its verdict faster than {rows[0].record.baseline}, at all batches "
        "measured from there on",
        remarks=[],
        **lay_out(columns, group_crossovers(crossovers)),
    )


def _tokens_column(tokens: int) -> Column[Crossover]:
    def cell(crossover: Crossover) -> str:
        row = next((row for row in crossover.rows if count_tokens(row) == tokens), None)
        return "" if row is None or row.speedup is None else format_ratio(row.speedup.value)

    return Column(str(tokens), cell, "detail")


def describe_crossover(crossover: Crossover) -> str:
    unlike = UNLIKE if any(row.unlike for row in crossover.rows) else ""
    return ", ".join(filter(None, [_describe(crossover), unlike]))


def _describe(crossover: Crossover) -> str:
    rows, paying, below = crossover.rows, crossover.paying, crossover.below
    if below is None:
        return f"at every batch measured, from {count_tokens(rows[0])} {AXIS} on"
    if paying:
        assert below.verdict is not None
        return (
            f"from {count_tokens(paying[0])} {AXIS} on; "
            f"at {count_tokens(below)} {BELOW[below.verdict]}"
        )
    last = f"{count_tokens(rows[-1])} {AXIS}"
    faster = [str(count_tokens(row)) for row in rows if row.verdict == "faster"]
    if faster:
        return f"not at {last}, but at {', '.join(faster)}"
    return f"{'unclear' if rows[-1].verdict == 'unclear' else 'never'}, up to {last}"
