"""Which part of a run moved when its time did: phases, and regions where instruments saw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.limit import part_times_ns
from flopwatch.records.record import Record

SMALLEST_SHARE = 0.05
"""Of the whole change; what moved less is not told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedPart:
    name: str
    """A phase; a region as ``phase/region``; what is left of a phase with regions by its name."""
    old_ns: float | None
    """None: there was no such part."""
    new_ns: float | None
    share: float
    """Of the change of the whole run; negative where it moved the other way."""

    @property
    def change_ns(self) -> float:
        return (self.new_ns or 0.0) - (self.old_ns or 0.0)


def find_moved_parts(old: Record, new: Record) -> list[MovedPart]:
    """In order of their share in the change, the largest first; empty for what has one part, and
    where the whole did not change."""
    before, after = part_times_ns(old), part_times_ns(new)
    change_ns = sum(after.values()) - sum(before.values())
    names = list({**before, **after})
    if len(names) < 2 or change_ns == 0:
        return []
    parts = [
        MovedPart(
            name=name,
            old_ns=before.get(name),
            new_ns=after.get(name),
            share=(after.get(name, 0.0) - before.get(name, 0.0)) / change_ns,
        )
        for name in names
    ]
    return sorted(
        (part for part in parts if abs(part.share) >= SMALLEST_SHARE),
        key=lambda part: -part.share,
    )


def find_common_parts(parts: Sequence[Sequence[MovedPart]]) -> dict[str, float]:
    """Over many cases: the mean share of each part in the changes, the largest first."""
    names = dict.fromkeys(part.name for case in parts for part in case)
    shares = {
        name: sum(part.share for case in parts for part in case if part.name == name) / len(parts)
        for name in names
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
