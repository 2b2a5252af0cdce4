"""Which rows of the breakdown moved between two sets of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.comparable import Differences, Matched, find_differences, match_cases
from flopwatch.analysis.hardware_limits import NOTHING, Limits, find_limits
from flopwatch.analysis.record_device import count_ranks
from flopwatch.analysis.step_breakdown import FASTER, NAMES, REST, StepBreakdown, make_breakdown
from flopwatch.devices.measured_peaks import read_setup
from flopwatch.records.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedRow:
    key: str
    name: str
    old_ns: float | None
    """None: there was no such row."""
    new_ns: float | None

    @property
    def change_ns(self) -> float:
        return (self.new_ns or 0.0) - (self.old_ns or 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Movement:
    """Of one case."""

    old: StepBreakdown
    new: StepBreakdown
    rows: Sequence[MovedRow]
    """What moved most comes first, in whatever direction. Their changes add up to that of the
    whole."""
    differences: Differences

    @property
    def change_ns(self) -> float:
        return self.new.total_ns - self.old.total_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    movements: Sequence[Movement]
    matched: Matched
    """With what has no counterpart."""


def find_moved(old: Sequence[Record], new: Sequence[Record]) -> Moved:
    """The newest record of each case on either side."""
    matched = match_cases(old, new)
    found = [_compare(pair.old[-1], pair.new[-1], pair.moved) for pair in matched.pairs]
    movements = [movement for movement in found if movement is not None]
    return Moved(movements=movements, matched=matched)


def _compare(old: Record, new: Record, moved: Differences) -> Movement | None:
    limits = _choose_limits(old, new)
    before, after = make_breakdown(old, limits[0]), make_breakdown(new, limits[1])
    if before is None or after is None:
        return None
    if before.is_explained != after.is_explained:  # the sides would have different rows
        before, after = (
            make_breakdown(old, NOTHING) or before,
            make_breakdown(new, NOTHING) or after,
        )
    return Movement(
        old=before,
        new=after,
        rows=_list_moved(before, after),
        differences={**moved, **find_differences(old, new)},
    )


def _choose_limits(old: Record, new: Record) -> tuple[Limits, Limits]:
    """The same ones on the same machine: peaks that were measured again must not look like a change
    of the work."""
    own = find_limits(old), find_limits(new)
    setups = [read_setup(record.environment, record.settings) for record in (old, new)]
    if setups[0] != setups[1] or count_ranks(old) != count_ranks(new):
        return own
    best = own[1] if own[1].peaks else own[0]
    return best, best


def _list_moved(old: StepBreakdown, new: StepBreakdown) -> list[MovedRow]:
    before = {row.key: row.time_ns for row in old.rows}
    after = {row.key: row.time_ns for row in new.rows}
    rows = [
        MovedRow(
            key=key, name=_name(key, before, after), old_ns=before.get(key), new_ns=after.get(key)
        )
        for key in {**before, **after}
    ]
    return sorted(rows, key=lambda row: -abs(row.change_ns))


def _name(key: str, before: dict[str, float], after: dict[str, float]) -> str:
    is_negative = before.get(key, 0.0) < 0 and after.get(key, 0.0) < 0
    return FASTER if key == REST and is_negative else NAMES.get(key, key)
