"""Whole layers beside the sums of their parts, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.parts import Whole, compare_wholes
from flopwatch.analysis.statistics import Estimate, Verdict, judge
from flopwatch.analysis.summary import Row
from flopwatch.report.columns import Column, axis_column
from flopwatch.report.tables import Sheet, choose_axes, divide, lay_out
from flopwatch.report.units import format_change, format_speedup, format_time

TAKES: dict[Verdict, str] = {
    "faster": "less than the sum",
    "slower": "more than the sum",
    "same": "as long as the sum",
    "unclear": "unclear",
}


def make_whole_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every table of cases in which layers were measured in parts too."""
    return [
        _make_sheet(alike, groups) for alike in divide(rows) if (groups := compare_wholes(alike))
    ]


def _make_sheet(rows: Sequence[Row], groups: Sequence[Sequence[Whole]]) -> Sheet:
    title, axes = choose_axes(rows)
    baseline = rows[0].record.baseline
    columns: list[Column[Whole]] = [
        *(axis_column(axis, lambda whole: whole.row) for axis in axes),
        Column("variant", lambda whole: whole.row.record.variant, "word"),
        Column("whole", lambda whole: _format_time(whole.row), "phase"),
        Column("sum of parts", lambda whole: _format_time(whole.parts), "phase"),
        Column("speedup", lambda whole: _format_speedup(whole.row.speedup), "detail"),
        Column("speedup of sums", lambda whole: _format_speedup(whole.parts_speedup), "detail"),
        Column("difference", lambda whole: format_change(whole.ratio)),
        Column("the whole takes", lambda whole: TAKES[judge(whole.ratio.inverse())], "word"),
    ]
    return Sheet(
        title=f"{title}, whole and sum of parts",
        conditions=(
            f"speedup: of the whole layer over {baseline}; of sums: of its parts over {baseline}'s "
            "parts, the published way; difference: of the whole from the sum"
        ),
        remarks=[],
        **lay_out(columns, groups),
    )


def _format_time(row: Row) -> str:
    return "" if row.total_ns is None else format_time(row.total_ns.value)


def _format_speedup(speedup: Estimate | None) -> str:
    return "" if speedup is None else format_speedup(speedup)
