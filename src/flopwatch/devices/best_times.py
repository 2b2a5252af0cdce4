"""The best time of many operations, on a machine that is never quite at rest.

Background load, and a clock that is not at its highest, only ever make an operation slower, so the
best time counts. Operations are interleaved: in every round each runs one block, in random order,
so that a slow minute falls on all of them. A block is some 50 ms of samples of some 0.2 ms, and its
best sample counts. Rounds are run until the time is spent, and longer while a best was seen once.

On an accelerator such a best is that of a cool device at its highest clock. What it keeps up under
load, once power and heat limit it, `sustain` measures: the same operation for seconds on end.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flopwatch.devices.base import Clock

SAMPLE_NS = 0.2e6
"""Much longer than a clock's steps, a GPU's included, and shorter than the system's time slices:
under background load, a sample must fit into a gap."""
BLOCK_NS = 50e6
CLOSE = 0.02
"""Blocks within this of the best have repeated it."""
ENOUGH_REPEATS = 2
PATIENCE = 2
"""So many times its time, at most, may a measurement take for a best to be repeated."""
WINDOW_NS = 0.2e9
STRETCH = 5
"""Windows of load, which is a second, whose mean counts."""

Run = Callable[[], object]
Settle = Callable[[float], float]
"""What all ranks take one rank's time for: the longest of theirs."""


def single_rank(value: float) -> float:
    """Where there is one rank."""
    return value


@dataclass(kw_only=True, slots=True)
class Trial:
    """An operation that is tried again and again."""

    work: float
    """FLOPs or bytes of one run."""
    prepare: Callable[[], Run]
    """Called before every block, untimed; gives what is run in it."""
    clock: Clock
    settle: Settle = single_rank
    blocks_ns: list[float] = field(default_factory=list)
    """Of one run: the best in each block."""

    @property
    def best_ns(self) -> float:
        return min(self.blocks_ns)

    @property
    def rate_per_s(self) -> float:
        return self.work / self.best_ns * 1e9

    @property
    def repeats(self) -> int:
        """Blocks that came close to the best, itself included."""
        return sum(block_ns <= self.best_ns * (1 + CLOSE) for block_ns in self.blocks_ns)

    def begin(self) -> None:
        """A first block, after a run that pays for one-time costs and one that shows how long a run
        takes."""
        run = self.prepare()
        run()
        self.blocks_ns = [self.take_sample(run, 1)]
        self.run_block()

    def run_block(self) -> None:
        run = self.prepare()
        loops = math.ceil(SAMPLE_NS / self.best_ns)
        spent_ns, best_ns = 0.0, math.inf
        while spent_ns < BLOCK_NS:
            run_ns = self.take_sample(run, loops)
            spent_ns += loops * run_ns
            best_ns = min(best_ns, run_ns)
        self.blocks_ns.append(best_ns)

    def take_sample(self, run: Run, loops: int) -> float:
        """Nanoseconds of one run, of so many in a row."""
        start = self.clock.mark()
        for _ in range(loops):
            run()
        (elapsed_ns,) = self.clock.elapsed_ns([start, self.clock.mark()])
        return self.settle(elapsed_ns) / loops


def sustain(trial: Trial, load_s: float, seconds: float) -> float:
    """Nanoseconds of one run of a trial that has begun, in the slowest second under load: after
    `load_s` of it, over `seconds`."""
    run = trial.prepare()
    loops = math.ceil(WINDOW_NS / trial.best_ns)
    spent_ns, windows_ns = 0.0, list[float]()
    while spent_ns < (load_s + seconds) * 1e9 or len(windows_ns) < STRETCH:
        is_loaded = spent_ns >= load_s * 1e9
        window_ns = trial.take_sample(run, loops)
        spent_ns += loops * window_ns
        if is_loaded:
            windows_ns.append(window_ns)
    stretches = (windows_ns[i : i + STRETCH] for i in range(len(windows_ns) - STRETCH + 1))
    return max(sum(stretch) / STRETCH for stretch in stretches)


def run_rounds(
    find_groups: Callable[[], Sequence[Sequence[Trial]]],
    budget_s: float,
    settle: Settle = single_rank,
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
            trial.run_block()
        spent_s = settle(now_s() - started_s)
        fastest = [max(group, key=lambda trial: trial.rate_per_s) for group in groups]
        is_repeated = all(trial.repeats >= ENOUGH_REPEATS for trial in fastest)
        if spent_s >= budget_s * (1 if is_repeated else PATIENCE):
            return
