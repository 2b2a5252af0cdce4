"""Workloads built anew while they are sampled, so that they come to lie elsewhere in memory.

Where tensors lie decides how fast they are. A store and a later load whose addresses agree in
their last 12 bits look like the same place to a CPU, and the load waits; sizes that are multiples
of a page, as those of most tensors are, put an output just so behind an input. Which pages of the
machine's memory a tensor got decides which lines of a cache it shares with others. None of this
changes while a process lives, so that one of two identical variants may be slower in every round:
here, of 50 pairs of identical operations on two cores (softmax, GELU and a sum of 96 to 384 rows of
512), 28 were more than 3 % apart, one of them by half, and 2 to 4 of 50 when they were built anew
every few rounds.

It is done where it costs little: not for whole models, whose many tensors lie here and there
anyway, nor for what is compiled, since a compiler counts how often it is asked. The one before is
kept until the next is there, which could not lie elsewhere otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from flopwatch.suites.workload import Workload

ROUNDS = 4
"""So many are taken between two renewals, at the least."""
SHARE = 0.2
"""Of the time of sampling that renewals may take."""
WORTH_TRYING = 0.1
"""Share of a group's budget: what took longer to build and run for the first time is not tried."""
BLOCKS, SMALLEST_BITS, LARGEST_BITS = 8, 10, 20
"""Of memory that is held meanwhile, 1 KiB to 1 MiB each: otherwise two that are built alternately
may only change places."""
PRIMING = 2
"""Untimed runs of what is new: memory is fetched, and what is lazy gets made."""


class Renewed(Protocol):
    """A series of samples, whose workload is replaced."""

    variant: str
    workload: Workload


class Renewal:
    """`build` makes a variant's workload; `first_s` is what building and running all of them for
    the first time has taken."""

    def __init__(
        self, build: Callable[[str], Workload], first_s: float, now_s: Callable[[], float]
    ) -> None:
        self._build = build
        self._random = random.Random(0)  # building begins with the common one at its seed
        self._now_s = now_s
        self._cost_s: float | None = first_s
        """That the next one is expected to take; None: there is none."""
        self._spent_s = 0.0
        self._held: list[bytearray] = []
        self.rounds: list[int] = []
        """Before which all workloads were built again."""

    def start(self, budget_s: float) -> None:
        """When sampling begins, in so much time."""
        if self._cost_s is not None and self._cost_s > WORTH_TRYING * budget_s:
            self._cost_s = None

    def is_due(self, round_: int, first_round: int, elapsed_s: float) -> bool:
        """Before this round, `elapsed_s` after the first one that was measured."""
        if self._cost_s is None or round_ - max([first_round, *self.rounds]) < ROUNDS:
            return False
        return self._spent_s + self._cost_s <= SHARE * elapsed_s or not self.rounds

    def renew(
        self, series: Sequence[Renewed], round_: int, run_once: Callable[[Workload], None]
    ) -> None:
        """In random order: the last one built lies elsewhere than the first."""
        started_s = self._now_s()
        self._held = [
            bytearray(int(2 ** self._random.uniform(SMALLEST_BITS, LARGEST_BITS)))
            for _ in range(BLOCKS)
        ]
        try:
            for one in self._random.sample(series, len(series)):
                made = self._build(one.variant)
                for _ in range(PRIMING):
                    run_once(made)
                one.workload = made
        except Exception:  # out of memory, or it can be built only once: keep the old one
            self._cost_s = None
            return
        self._cost_s = self._now_s() - started_s
        self._spent_s += self._cost_s
        self.rounds.append(round_)
