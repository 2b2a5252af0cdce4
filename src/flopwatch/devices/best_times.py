"""The best time of many operations, on a machine that is never quite at rest.

Other work on the machine, and its clock, only ever make an operation slower than it could be, so
the answer is the best time, and the question is how to meet a good moment. Operations take turns:
in every round each has one, in random order, so that a bad minute falls on all of them alike. In
its turn an operation runs for some 50 ms, in samples of some 0.2 ms, and the best sample counts.
Rounds are taken until the time is spent, and longer while some best was seen but once.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flopwatch.devices.clock import Clock

SAMPLE_NS = 0.2e6
"""Long beside the clock's steps, a GPU's included, and short beside the system's time slices: while
others want the cores too, a sample must fit into a gap."""
TURN_NS = 50e6
CLOSE = 0.02
"""Turns within this of the best have repeated it."""
ENOUGH_REPEATS = 2
PATIENCE = 2
"""So many times its time, at most, may a measurement take for a best to be repeated."""

Run = Callable[[], object]
Settle = Callable[[float], float]
"""What all ranks take one rank's time for: the longest of theirs."""


def alone(value: float) -> float:
    """Where there is one rank."""
    return value


@dataclass(kw_only=True, slots=True)
class Trial:
    """An operation that is tried again and again."""

    work: float
    """FLOPs or bytes of one run."""
    prepare: Callable[[], Run]
    """Called before every turn, untimed; gives what is run in it."""
    clock: Clock
    settle: Settle = alone
    turns_ns: list[float] = field(default_factory=list)
    """Of one run: the best in each turn."""

    @property
    def best_ns(self) -> float:
        return min(self.turns_ns)

    @property
    def rate_per_s(self) -> float:
        return self.work / self.best_ns * 1e9

    @property
    def repeats(self) -> int:
        """Turns that came close to the best, itself included."""
        return sum(turn_ns <= self.best_ns * (1 + CLOSE) for turn_ns in self.turns_ns)

    def begin(self) -> None:
        """A first turn, after runs that pay for what all others find done and tell how long a run
        is."""
        run = self.prepare()
        run()
        self.turns_ns = [self._take_sample(run, 1)]
        self.take_turn()

    def take_turn(self) -> None:
        run = self.prepare()
        loops = math.ceil(SAMPLE_NS / self.best_ns)
        spent_ns, best_ns = 0.0, math.inf
        while spent_ns < TURN_NS:
            run_ns = self._take_sample(run, loops)
            spent_ns += loops * run_ns
            best_ns = min(best_ns, run_ns)
        self.turns_ns.append(best_ns)

    def _take_sample(self, run: Run, loops: int) -> float:
        start = self.clock.mark()
        for _ in range(loops):
            run()
        (elapsed_ns,) = self.clock.elapsed_ns([start, self.clock.mark()])
        return self.settle(elapsed_ns) / loops


def take_turns(
    find_groups: Callable[[], Sequence[Sequence[Trial]]],
    budget_s: float,
    settle: Settle = alone,
    now_s: Callable[[], float] = time.monotonic,
) -> None:
    """Rounds over all trials, until the time is spent and the best of every group was repeated.

    The groups are asked for before every round, and may have grown. All trials have begun.
    """
    order = random.Random(0)  # the same on all ranks
    started_s = now_s()
    while groups := [group for group in find_groups() if group]:
        trials = [trial for group in groups for trial in group]
        for trial in order.sample(trials, len(trials)):
            trial.take_turn()
        spent_s = settle(now_s() - started_s)
        is_repeated = all(_is_repeated(group) for group in groups)
        if spent_s >= budget_s * (1 if is_repeated else PATIENCE):
            return


def _is_repeated(trials: Sequence[Trial]) -> bool:
    fastest = max(trials, key=lambda trial: trial.rate_per_s)
    return fastest.repeats >= ENOUGH_REPEATS
