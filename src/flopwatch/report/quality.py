"""What variants learned, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.quality import Quality, assess
from flopwatch.analysis.summary import Row
from flopwatch.case import label
from flopwatch.report.columns import UNLIKE, Value, middle
from flopwatch.report.tables import Sheet
from flopwatch.report.units import (
    format_count,
    format_interval,
    format_measured_time,
    format_speedup,
)


def make_quality_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every group in which something was trained."""
    return [make_quality_sheet(group) for group in assess(rows)]


def make_quality_sheet(group: Sequence[Quality]) -> Sheet:
    record = group[0].row.record
    baseline = record.baseline
    return Sheet(
        title=f"{record.suite} {label(record.params)}, loss",
        conditions=(
            f"gain: {baseline}'s time over the variant's, to the worse of both final losses; "
            "intervals are of step times, not of what another seed would give"
        ),
        columns=[
            "variant",
            "parameters",
            "step time",
            "±",
            "loss",
            f"vs {baseline}",
            f"time to {baseline}'s loss",
            "gain at equal loss",
        ],
        text_columns=1,
        optional=[[1], [3], [2]],
        groups=[[_make_cells(quality) for quality in group]],
        values=[[_list_values(quality) for quality in group]],
        remarks=_list_shortened(group),
    )


def _make_cells(quality: Quality) -> list[str]:
    record, step_ns = quality.row.record, quality.row.total_ns
    parameters = record.facts.get("parameters")
    return [
        record.variant,
        "" if parameters is None else format_count(parameters),
        format_measured_time(step_ns),
        "" if step_ns is None else format_interval(step_ns),
        f"{quality.final_loss:.3f}",
        "" if quality.loss_difference is None else _format_difference(quality.loss_difference),
        _format_time_to_baseline(quality),
        _format_gain(quality),
    ]


def _list_values(quality: Quality) -> list[Value]:
    record, step_ns = quality.row.record, quality.row.total_ns
    return [
        record.variant,
        record.facts.get("parameters"),
        middle(step_ns),
        None if step_ns is None else step_ns.half_width,
        quality.final_loss,
        quality.loss_difference,
        middle(quality.time_to_baseline_ns),
        middle(quality.gain),
    ]


def _format_difference(difference: float) -> str:
    """
    >>> [_format_difference(d) for d in (0.0304, -0.0304, -0.0001)]
    ['+0.030', '−0.030', '+0.000']
    """
    # Adding 0 makes a rounded -0.0 a plain zero.
    return f"{round(difference, 3) + 0:+.3f}".replace("-", "−")


def _format_time_to_baseline(quality: Quality) -> str:
    if quality.time_to_baseline_ns is not None:
        return format_measured_time(quality.time_to_baseline_ns)
    return "not reached" if quality.reaches_baseline is False else ""


def _format_gain(quality: Quality) -> str:
    if quality.row.record.variant == quality.row.record.baseline:
        return "baseline"
    gain = "" if quality.gain is None else format_speedup(quality.gain)
    return ", ".join(filter(None, [gain, UNLIKE if quality.row.unlike else ""]))


def _list_shortened(group: Sequence[Quality]) -> list[str]:
    """Of variants that were trained for less than the others: their losses are not final ones."""
    most = max(quality.steps for quality in group)
    return [
        f"{quality.row.record.variant} {label(quality.row.record.params)}: trained for "
        f"{quality.steps:,.0f} steps, others for {most:,.0f}"
        for quality in group
        if quality.steps < most
    ]
