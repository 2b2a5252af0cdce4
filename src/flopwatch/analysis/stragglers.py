"""Which rank makes the others wait.

Collectives make the steps of all ranks equally long: a rank that is late is found by when it
arrives, not by how long its steps take. In each step, the rank that waits least is the last; what
is lost is what the others wait for it: the median of their waiting beyond its own. A rank that is
the last nearly always is slow itself (its hardware, its share of the work, its neighbours on the
node); where it is now one and now another, what they do varies: data, garbage collection, the
network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

ALWAYS = 0.8
"""Of the steps: a rank that is the last in so many is slow itself."""
LEAST_LOST = 0.02
"""Of the time of all steps: with less, nobody is one."""
LATE = 0.01
"""Of a step: a rank that is later than this is the last; otherwise they came together."""

Pattern = Literal["always", "at-times", "varying", "none"]
"""always: one rank makes the others wait, in most steps; at-times: one rank does, in some steps;
varying: now one rank, now another; none: too little is lost to say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWait:
    rank: int
    waiting_share: float
    """Of the time of its steps, that it waits for others."""
    last_share: float
    """Of the steps, in which it comes last, late enough to count."""
    lost_ns: float
    """That others wait for it, over all steps."""
    lost_share: float
    """Of the time of all steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    pattern: Pattern
    rank: int | None
    """The straggler; None where it is not one rank."""
    lost_share: float
    """Of the time of all steps, that is lost by waiting for the last rank."""
    ranks: list[RankWait]

    @property
    def worst(self) -> RankWait:
        return max(self.ranks, key=lambda one: one.lost_ns)


def find_stragglers(waiting_ns: Array, step_ns: Array, numbers: Sequence[int]) -> Stragglers | None:
    """`waiting_ns` has a row for each rank of `numbers` and a column a step, NaN where it is not
    known; None where fewer than two ranks are known."""
    import numpy as np

    if waiting_ns.ndim != 2 or len(waiting_ns) < 2:
        return None
    known = ~np.isnan(waiting_ns).any(axis=0)
    waiting, steps = waiting_ns[:, known], step_ns[known]
    if not len(steps):
        return None
    ranks, total_ns = len(waiting), float(steps.sum())
    ordered = np.sort(waiting, axis=0)
    lost = np.median(ordered[1:], axis=0) - ordered[0]
    last = np.argmin(waiting, axis=0)
    is_late = lost > LATE * steps
    lost = np.where(is_late, lost, 0.0)
    by_rank = np.bincount(last, weights=lost, minlength=ranks)
    counts = np.bincount(last[is_late], minlength=ranks)
    found = [
        RankWait(
            rank=numbers[rank],
            waiting_share=float(waiting[rank].sum()) / total_ns,
            last_share=float(counts[rank]) / len(steps),
            lost_ns=float(by_rank[rank]),
            lost_share=float(by_rank[rank]) / total_ns,
        )
        for rank in range(ranks)
    ]
    lost_share = float(lost.sum()) / total_ns
    worst = max(found, key=lambda each: each.lost_ns)
    pattern: Pattern = "none"
    if lost_share >= LEAST_LOST:
        # More than halfway from an equal share to all of it.
        is_one = worst.lost_ns >= (0.5 + 0.5 / ranks) * float(lost.sum())
        pattern = ("always" if worst.last_share >= ALWAYS else "at-times") if is_one else "varying"
    return Stragglers(
        pattern=pattern,
        rank=worst.rank if pattern in ("always", "at-times") else None,
        lost_share=lost_share,
        ranks=found,
    )
