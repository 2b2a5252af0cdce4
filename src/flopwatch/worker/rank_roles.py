"""Who leads a group through its measurement: alone, or in front of other ranks.

A rank that follows: it does what the leader orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from flopwatch.devices.clock import Clock
from flopwatch.errors import SuiteError, Unsupported
from flopwatch.suites.suite import Workload
from flopwatch.worker import agreement
from flopwatch.worker.agreement import Gathered
from flopwatch.worker.instruments import Visit
from flopwatch.worker.limits import Collector, from_seed
from flopwatch.worker.rank_team import Team, resolve
from flopwatch.worker.rank_times import Run, Share, average, combine, split
from flopwatch.worker.sampling import mark_phases
from flopwatch.worker.study import Diverged, take_points


class Alone:
    """Who leads nobody: a worker without company."""

    def __init__(self, clock: Clock, evict: Callable[[], None]) -> None:
        self.clock = clock
        self.evict = evict

    def build(self, variant: str, make: Callable[[], Workload]) -> Workload:
        return make()

    def gather(self, variant: str, workload: Workload) -> Gathered:
        return agreement.gather(workload, self.clock)

    def lead(self, variant: str, workload: Workload) -> Workload:
        return workload

    def take_shares(self, loops: int) -> list[Share]:
        return []

    def list_facts(self) -> dict[str, float]:
        return {}

    def drop(self, variant: str) -> None:
        pass

    def leave(self) -> None:
        pass


class Leader:
    """Who leads a team. As a clock, what it says of a run is true for all ranks."""

    def __init__(self, team: Team, clock: Clock, evict: Callable[[], None]) -> None:
        self.name = f"{clock.name} of all ranks"
        self.clock: Clock = self
        self.evict = evict
        self.team = team
        self._clock = clock
        self._run_number = 0
        self._began_ns: dict[int, float] = {}
        self._journals: dict[int, Sequence[Visit]] = {}
        self._shares: list[list[Share]] = []
        """By run that was timed, then by rank."""
        self._workload: Workload | None = None

    @property
    def resolution_ns(self) -> float:
        return self._clock.resolution_ns

    def build(self, variant: str, make: Callable[[], Workload]) -> Workload:
        self.team.order("build", variant)
        return make()

    def gather(self, variant: str, workload: Workload) -> Gathered:
        self.team.order("gather", variant)
        found, shares = self.team.gather(workload, self._clock)
        self._shares = [shares]
        return found

    def drop(self, variant: str) -> None:
        self.team.order("drop", variant)

    def leave(self) -> None:
        self.team.order("leave")

    def lead(self, variant: str, workload: Workload) -> Workload:
        """The same workload, whose every run is one of all ranks."""
        if workload.instrument is not None:
            raise SuiteError("a workload of several ranks has instruments, which it must not")

        def reset() -> None:
            self._keep_journal()
            self._run_number += 1
            self.team.order("run", variant, self._run_number)
            self._workload = workload
            self._began_ns[self._run_number] = self.team.start_together(workload)

        study = workload.study

        def study_together() -> Iterable[Mapping[str, float]]:
            assert study is not None
            self.team.order("study", variant)
            return study()

        return replace(workload, reset=reset, study=None if study is None else study_together)

    def mark(self) -> tuple[int, Any]:
        return self._run_number, self._clock.mark()

    def elapsed_ns(self, marks: Sequence[tuple[int, Any]]) -> list[float]:
        self._keep_journal()
        number = marks[0][0]
        own = resolve(
            self._clock,
            self._began_ns[number],
            [mark for _, mark in marks],
            self._journals.get(number, ()),
        )
        self.team.order("report", number)
        runs: list[Run] = self.team.collect(own)
        self._forget(number)
        self._shares.append(split(runs))
        return combine(runs)

    def list_facts(self) -> dict[str, float]:
        return {"machines": self.team.machines}

    def take_shares(self, loops: int) -> list[Share]:
        """By rank, of the last sample, which was of so many runs."""
        taken, self._shares = self._shares[-loops:], []
        return [average(of_rank) for of_rank in zip(*taken, strict=True)]

    def _keep_journal(self) -> None:
        """Of the run that is just over, before the next one clears it."""
        journal = self._workload.journal if self._workload is not None else None
        if journal is not None:
            self._journals[self._run_number] = journal.visits
        self._workload = None

    def _forget(self, up_to: int) -> None:
        for kept in (self._began_ns, self._journals):
            for number in [number for number in kept if number <= up_to]:
                del kept[number]


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
