"""Goodput: the share of the wall clock that advanced training, over all starts of a run.

Everything from the first start to the last step is accounted for, and adds up: what steps that
count took at their usual speed is training; the rest is lost to starting up, first steps
(compilation, allocation), slow steps, pauses, time outside of steps, steps that were computed again
after a restart from an older step, and the time between a death and the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    pauses_s: dict[str, float] = field(default_factory=dict)
    """By name, between steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    share: float
    wall_s: float
    training_s: float
    lost_s: dict[Loss, float]
    """By reason; with the training it adds up to the wall clock."""
    pauses_s: dict[str, float]
    """By name."""
    starts: int
    steps: int
    """That count: each number once."""
    repeated_steps: int


def find_goodput(attempts: Sequence[Attempt]) -> Goodput | None:
    """In order of their starts; None where no time passed."""
    import numpy as np

    ordered = sorted(attempts, key=lambda attempt: attempt.began_s)
    lost: dict[Loss, float] = dict.fromkeys(
        ("start-up", "first steps", "slow steps", "pauses", "outside of steps", "repeated steps",
         "down"), 0.0
    )  # fmt: skip
    pauses: dict[str, float] = {}
    training_s, steps, repeated_steps = 0.0, 0, 0
    for place, attempt in enumerate(ordered):
        later = [int(one.numbers[0]) for one in ordered[place + 1 :] if len(one.numbers)]
        counts = attempt.numbers < min(later) if later else np.ones(len(attempt.numbers), bool)
        excess = attempt.step_ns - attempt.usual_ns
        is_first = np.arange(len(excess)) < attempt.first_steps
        training_s += float(attempt.usual_ns[counts].sum()) / 1e9
        lost["first steps"] += float(excess[counts & is_first].sum()) / 1e9
        lost["slow steps"] += float(excess[counts & ~is_first].sum()) / 1e9
        lost["repeated steps"] += float(attempt.step_ns[~counts].sum()) / 1e9
        lost["start-up"] += max(0.0, attempt.begin_s - attempt.began_s)
        known_s = float(attempt.step_ns.sum()) / 1e9 + sum(attempt.pauses_s.values())
        outside_s = attempt.ended_s - attempt.begin_s - known_s
        lost["outside of steps"] += outside_s if outside_s > CLOCK_S else 0.0
        for name, time_s in attempt.pauses_s.items():
            pauses[name] = pauses.get(name, 0.0) + time_s
        steps += int(counts.sum())
        repeated_steps += int((~counts).sum())
        if place:
            lost["down"] += max(0.0, attempt.began_s - ordered[place - 1].ended_s)
    lost["pauses"] = sum(pauses.values())
    # A clock that jumps must not break the sum.
    wall_s = training_s + sum(lost.values())
    if wall_s <= 0:
        return None
    return Goodput(
        share=training_s / wall_s,
        wall_s=wall_s,
        training_s=training_s,
        lost_s={reason: time_s for reason, time_s in lost.items() if time_s > 0},
        pauses_s=pauses,
        starts=len(ordered),
        steps=steps,
        repeated_steps=repeated_steps,
    )
