"""What runs held in memory, phase by phase, beside what was foretold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from flopwatch.analysis.summary import Row
from flopwatch.records.record import Record
from flopwatch.report.columns import Column, axis_column, bytes_column
from flopwatch.report.tables import Sheet, choose_axes, divide, lay_out
from flopwatch.report.units import format_bytes

OF_ALL = (
    "where an error is missing, before and peak include what other variants hold, and foretold "
    "does not"
)


def make_memory_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every table of cases whose memory was foretold."""
    groups = {row.record.group for row in rows if row.record.memory_estimate_bytes}
    return [_make_sheet(alike) for alike in divide([r for r in rows if r.record.group in groups])]


def _make_sheet(rows: Sequence[Row]) -> Sheet:
    # One that is not foretold has tensors of its own, which are there before the others' steps; and
    # in a job, every variant has.
    mixed = {row.record.group for row in rows if not row.record.memory_estimate_bytes}
    jobs = Counter(row.record.group for row in rows if row.record.ranks)
    mixed |= {group for group, variants in jobs.items() if variants > 1}

    def error_of(row: Row) -> float | None:
        return None if row.record.group in mixed else find_error(row.record)

    title, axes = choose_axes(rows)
    phases = dict.fromkeys(phase for row in rows for phase in row.record.memory)
    columns: list[Column[Row]] = [
        *(axis_column(axis, lambda row: row) for axis in axes),
        Column("variant", lambda row: row.record.variant, "word"),
        bytes_column("before", lambda row: row.record.held_bytes, "detail"),
        *map(_phase_column, phases),
        bytes_column("kept for backward", _find_kept_bytes, "memory"),
        Column("peak", _peak_cell, value=lambda row: find_peak_bytes(row.record)),
        bytes_column("foretold", lambda row: find_estimate_bytes(row.record)),
        Column("error", lambda row: _format_error(error_of(row)), value=error_of),
    ]
    return Sheet(
        title=f"{title}, memory",
        conditions=(
            "before: tensors that were there before a step; by phase: the most that it held beyond "
            "those; peak: both together; foretold: from dimensions alone"
        ),
        remarks=[OF_ALL] if mixed else [],
        **lay_out(
            columns, [list(group) for _, group in groupby(rows, lambda row: row.record.group)]
        ),
    )


def find_peak_bytes(record: Record) -> int | None:
    """Of all tensors of the process; None where it was not measured."""
    if record.held_bytes is None or not record.memory:
        return None
    return record.held_bytes + max(held.peak_bytes for held in record.memory.values())


def find_estimate_bytes(record: Record) -> float | None:
    return sum(record.memory_estimate_bytes.values()) or None


def find_error(record: Record) -> float | None:
    """Of the estimate, relative to what was measured; None where either is not known."""
    peak_bytes, estimate_bytes = find_peak_bytes(record), find_estimate_bytes(record)
    return estimate_bytes / peak_bytes - 1 if peak_bytes and estimate_bytes else None


def _phase_column(phase: str) -> Column[Row]:
    def find_bytes(row: Row) -> float | None:
        held = row.record.memory.get(phase)
        return None if held is None else held.peak_bytes

    return bytes_column(phase, find_bytes, "phase")


def _find_kept_bytes(row: Row) -> float | None:
    forward = row.record.memory.get("forward")
    return None if forward is None or "backward" not in row.record.memory else forward.end_bytes


def _peak_cell(row: Row) -> str:
    peak_bytes = find_peak_bytes(row.record)
    return row.record.status if peak_bytes is None else format_bytes(peak_bytes)


def _format_error(error: float | None) -> str:
    # Adding 0 makes +0.0 of what rounds to -0.0.
    return "" if error is None else f"{round(100 * error, 1) + 0.0:+.1f} %".replace("-", "−")
