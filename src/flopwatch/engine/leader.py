"""Who leads a group through its measurement: alone, or in front of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flopwatch.engine import agreement
from flopwatch.engine.agreement import Gathered
from flopwatch.engine.clock import Clock
from flopwatch.engine.journal import Visit
from flopwatch.engine.ranks import Run, Share, average, combine, split
from flopwatch.engine.team import Team, resolve
from flopwatch.errors import SuiteError
from flopwatch.suite import Workload


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
