"""A rank that follows: it does what the leader orders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from flopwatch.engine.clock import Clock
from flopwatch.engine.collection import Collector
from flopwatch.engine.ranks import Run
from flopwatch.engine.sampling import mark_phases
from flopwatch.engine.seeding import from_seed
from flopwatch.engine.study import Diverged, take_points
from flopwatch.engine.team import Team, resolve
from flopwatch.errors import Unsupported
from flopwatch.suite import Workload


class Follower:
    """`build` makes a variant, by name; `seed` is what all that is random begins with."""

    def __init__(
        self, team: Team, clock: Clock, build: Callable[[str], Workload], seed: int = 0
    ) -> None:
        self._team = team
        self._clock = clock
        self._make = build
        self._seed = seed
        self._workloads: dict[str, Workload] = {}
        self._runs: dict[int, Run] = {}

    def follow(self) -> Iterator[str]:
        """Carry out orders until there are none left; yields each one's word before it does, for
        who watches this rank."""
        with Collector(time.perf_counter) as collector:
            while True:
                word, *given = self._team.await_order()
                if word == "leave":
                    return
                yield word
                getattr(self, f"_{word}")(*given)
                collector.collect_if_due()

    def _build(self, variant: str) -> None:
        with suppress(Unsupported):  # the leader has found that out as well
            self._workloads[variant] = from_seed(self._seed, self._make, variant)

    def _gather(self, variant: str) -> None:
        with suppress(Diverged):  # likewise
            self._team.gather(self._workloads[variant], self._clock)

    def _run(self, variant: str, number: int) -> None:
        workload = self._workloads[variant]
        began_ns: list[float] = []
        started = replace(
            workload, reset=lambda: began_ns.append(self._team.start_together(workload))
        )
        marks = mark_phases(started, self._clock)
        visits = workload.journal.visits if workload.journal is not None else ()
        self._runs[number] = resolve(self._clock, began_ns[0], marks, visits)

    def _report(self, number: int) -> None:
        self._team.collect(self._runs[number])
        self._runs = {later: run for later, run in self._runs.items() if later > number}

    def _study(self, variant: str) -> None:
        study = self._workloads[variant].study
        assert study is not None
        # As far as the leader comes, if all see the same; else the leader ends the team.
        with suppress(Diverged):
            for _ in from_seed(self._seed, take_points, study):
                pass

    def _drop(self, variant: str) -> None:
        self._workloads.pop(variant, None)
