"""Goodput: the share of the wall clock that advanced training, over all starts of a run.

Everything from the first start to the last step is accounted for, and adds up: what steps that
count took at their usual speed is training; the rest is lost to starting up, first steps
(compilation, allocation), slow steps, pauses, time outside of steps, steps that were repeated
after a restart from an older step, and the time between a death and the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

CLOCK_S = 1e-4
"""What times since the epoch are exact to, and more."""

Loss = Literal[
    "start-up", "first steps", "slow steps", "pauses", "outside of steps", "repeated steps", "down"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of a run, from its beginning to its end or death."""

    began_s: float
    """By the wall clock, since the epoch."""
    ended_s: float
    numbers: Array
    """Of its steps, as the run counts them over restarts."""
    begin_s: float
    """Of the first step; `ended_s` where there is none."""
    step_ns: Array
    usual_ns: Array
    """What each step would have taken at its usual speed: less where it was slow or an early one,
    never more than it took."""
    first_steps: int
    paused_s: float
    """In pauses, which are no part of any step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartTimes:
    """What the wall clock of one start went to; all of it together is that."""

    training_s: float
    lost_s: dict[Loss, float]
    """By reason; "down" is before the start."""
    steps: int
    """That count."""
    repeated_steps: int

    @property
    def wall_s(self) -> float:
        return self.training_s + sum(self.lost_s.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    share: float
    wall_s: float
    training_s: float
    lost_s: dict[Loss, float]
    """By reason; with the training it adds up to the wall clock."""
    starts: list[StartTimes]
    """In order."""
    steps: int
    """That count: each number once."""
    repeated_steps: int


def find_goodput(attempts: Sequence[Attempt]) -> Goodput | None:
    """None where no time passed."""
    ordered = sorted(attempts, key=lambda attempt: attempt.began_s)
    starts = []
    ended_s: float | None = None
    for place, attempt in enumerate(ordered):
        later = [int(one.numbers[0]) for one in ordered[place + 1 :] if len(one.numbers)]
        starts.append(_account(attempt, min(later, default=None), ended_s))
        ended_s = attempt.ended_s
    # Sums of what is accounted for, not of a clock that may have jumped.
    training_s = sum(start.training_s for start in starts)
    wall_s = sum(start.wall_s for start in starts)
    if wall_s <= 0:
        return None
    reasons = dict.fromkeys(reason for start in starts for reason in start.lost_s)
    return Goodput(
        share=training_s / wall_s,
        wall_s=wall_s,
        training_s=training_s,
        lost_s={reason: sum(s.lost_s.get(reason, 0.0) for s in starts) for reason in reasons},
        starts=starts,
        steps=sum(start.steps for start in starts),
        repeated_steps=sum(start.repeated_steps for start in starts),
    )


def _account(attempt: Attempt, next_first: int | None, ended_before_s: float | None) -> StartTimes:
    """Of one start, of which a later one repeats all from `next_first` on."""
    import numpy as np

    count = len(attempt.numbers)
    counts = np.ones(count, bool) if next_first is None else attempt.numbers < next_first
    excess = attempt.step_ns - attempt.usual_ns
    is_first = np.arange(count) < attempt.first_steps
    outside_s = attempt.ended_s - attempt.begin_s - float(attempt.step_ns.sum()) / 1e9
    outside_s -= attempt.paused_s
    down_s = 0.0 if ended_before_s is None else attempt.began_s - ended_before_s
    lost: dict[Loss, float] = {
        "down": down_s,
        "start-up": attempt.begin_s - attempt.began_s,
        "first steps": float(excess[counts & is_first].sum()) / 1e9,
        "slow steps": float(excess[counts & ~is_first].sum()) / 1e9,
        "repeated steps": float(attempt.step_ns[~counts].sum()) / 1e9,
        "pauses": attempt.paused_s,
        "outside of steps": outside_s if outside_s > CLOCK_S else 0.0,
    }
    return StartTimes(
        training_s=float(attempt.usual_ns[counts].sum()) / 1e9,
        lost_s={reason: time_s for reason, time_s in lost.items() if time_s > 0},
        steps=int(counts.sum()),
        repeated_steps=int((~counts).sum()),
    )
