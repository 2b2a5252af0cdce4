"""Whole layers beside the sums of their parts, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.parts import Whole, compare_wholes
from flopwatch.analysis.statistics import Verdict, judge
from flopwatch.analysis.summary import Row
from flopwatch.report.columns import Column, axis_column, speedup_column, time_column
from flopwatch.report.tables import Sheet, choose_axes, divide, lay_out
from flopwatch.report.units import format_change

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
        time_column("whole", lambda whole: whole.row.total_ns, "phase"),
        time_column("sum of parts", lambda whole: whole.parts.total_ns, "phase"),
        speedup_column("speedup", lambda whole: whole.row.speedup, "detail"),
        speedup_column("speedup of sums", lambda whole: whole.parts_speedup, "detail"),
        Column("difference", lambda w: format_change(w.ratio), value=lambda w: w.ratio.value - 1),
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
