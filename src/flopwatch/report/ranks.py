"""What the ranks of jobs did with their time, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from flopwatch.analysis.losses import compare_losses
from flopwatch.analysis.ranks import Split, find_slow_rank, split_ranks
from flopwatch.analysis.summary import Row
from flopwatch.report.columns import Column, axis_column
from flopwatch.report.tables import Sheet, choose_axes, divide, lay_out
from flopwatch.report.units import format_time


@dataclass(frozen=True, slots=True)
class Place:
    row: Row
    split: Split


def make_rank_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every table of cases that ran on more than one rank."""
    jobs = [row for row in rows if len(split_ranks(row.record)) > 1]
    return [_make_sheet(alike) for alike in divide(jobs)]


def _make_sheet(rows: Sequence[Row]) -> Sheet:
    title, axes = choose_axes(rows)
    sections = [[Place(row, split) for split in split_ranks(row.record)] for row in rows]
    columns: list[Column[Place]] = [
        *(axis_column(axis, lambda place: place.row) for axis in axes),
        Column("variant", lambda place: place.row.record.variant, "word"),
        Column("rank", lambda place: str(place.split.rank), "word"),
        Column("step", lambda p: format_time(p.split.step_ns), value=lambda p: p.split.step_ns),
        _part_column("working", lambda split: split.working_ns),
        _part_column("waiting", lambda split: split.waiting_ns),
        _part_column("moving data", lambda split: split.moving_ns),
    ]
    return Sheet(
        title=f"{title}, ranks",
        conditions=(
            "waiting: at collectives, until the last rank had come to them; moving data: from then "
            "on; working: all else, collectives in the background included; of the median step"
        ),
        remarks=[
            *(remark for row in rows for remark in _remark_on(row)),
            *(
                remark
                for _, group in groupby(rows, lambda row: row.record.group)
                for remark in _remark_on_losses(list(group))
            ),
        ],
        **lay_out(columns, sections),
    )


def _part_column(name: str, find_ns: Callable[[Split], float]) -> Column[Place]:
    return Column(
        name,
        lambda place: _with_share(find_ns(place.split), place.split),
        value=lambda place: find_ns(place.split),
    )


def _with_share(time_ns: float, split: Split) -> str:
    if time_ns <= 0:
        return "0"
    return f"{format_time(time_ns)} ({100 * time_ns / split.step_ns:.0f} %)"


def _remark_on(row: Row) -> list[str]:
    splits = split_ranks(row.record)
    slow = find_slow_rank(splits)
    if slow is None:
        return []
    longest_ns = max(split.waiting_ns for split in splits)
    return [
        f"{row.record.variant}: the others wait for rank {slow.rank}, up to "
        f"{format_time(longest_ns)} of a step"
    ]


def _remark_on_losses(rows: Sequence[Row]) -> list[str]:
    found = compare_losses(rows)
    if found is None:
        return []
    furthest = f"{found.variant} is furthest off, by {100 * found.deviation:.2g} %"
    return [
        f"all variants trained on the same texts, {found.steps} steps, loss {found.first:.3f} to "
        f"{found.last:.3f}; {furthest if found.deviation else 'all losses are equal'}"
    ]
