"""What the processes of a group do: one process alone, rank 0, or another rank.

Rank 0 builds, checks, samples and reports as a single process does, and orders every other rank to
do the same at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from flopwatch.devices.base import Backend, Clock, Memory
from flopwatch.errors import SuiteError, Unsupported
from flopwatch.records.record import RankMemory
from flopwatch.suites.workload import Workload
from flopwatch.worker import agreement
from flopwatch.worker.agreement import Gathered
from flopwatch.worker.communicator import Communicator, resolve
from flopwatch.worker.instruments import CutShort, Diverged, take_points
from flopwatch.worker.limits import Collector, from_seed
from flopwatch.worker.rank_devices import DeviceWatch, RankDevice
from flopwatch.worker.rank_times import Notes, Run, Share, average, combine, fold_share, split
from flopwatch.worker.timed_runs import mark_run, mark_window

MemoryOfRanks = tuple[Memory | None, list[RankMemory | None]]
"""Of this process, and by rank; nothing where there are no ranks."""


class SingleProcess:
    """A worker without other ranks."""

    def __init__(
        self,
        clock: Clock,
        evict: Callable[[], None],
        drain: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self.evict = evict
        self.drain = drain

    def build(self, variant: str, make: Callable[[], Workload]) -> Workload:
        return make()

    def gather(self, variant: str, workload: Workload) -> Gathered:
        return agreement.gather(workload, self.clock)

    def synchronize(self, variant: str, workload: Workload) -> Workload:
        return workload

    def take_shares(self, calls: int) -> list[Share]:
        return []

    def list_facts(self) -> dict[str, float]:
        return {}

    def read_devices(self, watch: DeviceWatch) -> list[RankDevice]:
        return [watch.read()]

    def measure_memory(self, variant: str, workload: Workload, target: Backend) -> MemoryOfRanks:
        return look_at_memory(workload, target), []

    def drop(self, variant: str) -> None:
        pass

    def leave(self) -> None:
        pass


class RankZero:
    """Rank 0 of a job. As a clock, its times are those of all ranks together."""

    def __init__(
        self,
        comm: Communicator,
        clock: Clock,
        evict: Callable[[], None],
        drain: Callable[[], None] | None = None,
    ) -> None:
        self.name = f"{clock.name} of all ranks"
        self.clock: Clock = self
        self.evict = evict
        self.drain = drain
        self.comm = comm
        self._clock = clock
        self._run_number = 0
        self._began_ns: dict[int, float] = {}
        self._journals: dict[int, Notes] = {}
        self._phases: dict[int, int] = {}
        """How many a run has: a window of runs has marks for those of each."""
        self._shares: list[list[Share]] = []
        """By run that was timed, then by rank."""
        self._workload: Workload | None = None
        self._plain: dict[str, Workload] = {}
        """As they were before their runs became those of all ranks."""

    @property
    def resolution_ns(self) -> float:
        return self._clock.resolution_ns

    def build(self, variant: str, make: Callable[[], Workload]) -> Workload:
        self.comm.order("build", variant)
        return make()

    def gather(self, variant: str, workload: Workload) -> Gathered:
        self.comm.order("gather", variant)
        found, shares = self.comm.gather(workload, self._clock)
        self._shares = [shares]
        return found

    def drop(self, variant: str) -> None:
        self._plain.pop(variant, None)
        self.comm.order("drop", variant)

    def leave(self) -> None:
        self.comm.order("leave")

    def synchronize(self, variant: str, workload: Workload) -> Workload:
        """The same workload, whose every run is one of all ranks."""
        if workload.instrument is not None:
            raise SuiteError("a workload of several ranks has instruments; leave them out")

        def start(calls: int | None, prepared: Workload) -> None:
            self._keep_journal()
            self._run_number += 1
            self.comm.order("run", variant, self._run_number, calls)
            self._workload = workload
            self._phases[self._run_number] = len(workload.phases)
            self._began_ns[self._run_number] = self.comm.start_together(prepared)

        def reset() -> None:
            start(None, workload)

        def run_ahead(calls: int) -> Callable[[], object]:
            prepared, begin = prepare_window(workload, calls)
            start(calls, prepared)
            return begin

        self._plain[variant] = workload
        curves = workload.curves

        def take_curves() -> Iterable[Mapping[str, float]]:
            assert curves is not None
            self.comm.order("curves", variant)
            return curves()

        return replace(
            workload,
            reset=reset,
            ahead=None if workload.ahead is None else run_ahead,
            curves=None if curves is None else take_curves,
        )

    def mark(self) -> tuple[int, Any]:
        return self._run_number, self._clock.mark()

    def elapsed_ns(self, marks: Sequence[tuple[int, Any]]) -> list[float]:
        self._keep_journal()
        number = marks[0][0]
        own = resolve(
            self._clock,
            self._began_ns[number],
            [mark for _, mark in marks],
            self._journals.get(number, Notes()),
        )
        self.comm.order("report", number)
        runs: list[Run] = self.comm.collect(own, Run)
        phases = self._phases[number]
        self._forget(number)
        self._shares.append(
            [
                replace(fold_share(share, phases), run=run)
                for share, run in zip(split(runs), runs, strict=True)
            ]
        )
        return combine(runs)

    def list_facts(self) -> dict[str, float]:
        return {"nodes": self.comm.nodes}

    def read_devices(self, watch: DeviceWatch) -> list[RankDevice]:
        """By rank."""
        self.comm.order("device")
        devices: list[RankDevice] = self.comm.collect(watch.read(), RankDevice)
        return devices

    def measure_memory(self, variant: str, workload: Workload, target: Backend) -> MemoryOfRanks:
        """All ranks run at once what each of them looks at."""
        self.comm.order("memory", variant)
        own = look_at_memory(self._plain[variant], target)
        return own, self.comm.collect(summarize_memory(own), RankMemory | None)

    def take_shares(self, calls: int) -> list[Share]:
        """By rank, of the last sample, which was of so many runs, or one window of them."""
        taken, self._shares = self._shares[-calls:], []
        return [average(of_rank) for of_rank in zip(*taken, strict=True)]

    def _keep_journal(self) -> None:
        """Of the run that is just over, before the next one clears it."""
        journal = self._workload.journal if self._workload is not None else None
        if journal is not None:
            self._journals[self._run_number] = journal.read()
        self._workload = None

    def _forget(self, up_to: int) -> None:
        for kept in (self._began_ns, self._journals, self._phases):
            for number in [number for number in kept if number <= up_to]:
                del kept[number]


def prepare_window(workload: Workload, calls: int) -> tuple[Workload, Callable[[], object]]:
    """The workload as it is before a window of so many runs, whose reset prepares all of them; and
    what begins each, once that is done."""
    assert workload.ahead is not None
    run_ahead, ready = workload.ahead, list[Callable[[], object]]()

    def begin() -> None:
        ready[0]()

    return replace(workload, reset=lambda: ready.append(run_ahead(calls))), begin


def look_at_memory(workload: Workload, target: Backend) -> Memory | None:
    return target.measure_memory(workload.reset or (lambda: None), workload.phases)


def summarize_memory(memory: Memory | None) -> RankMemory | None:
    if memory is None:
        return None
    return RankMemory(resident_bytes=memory.resident_bytes, peak_memory_bytes=memory.peak_bytes)


class OtherRank:
    """Any rank but 0. `build` makes a variant, by name, from the common `seed`."""

    def __init__(
        self,
        comm: Communicator,
        clock: Clock,
        build: Callable[[str], Workload],
        watch: DeviceWatch,
        target: Backend,
        seed: int = 0,
    ) -> None:
        self._comm = comm
        self._target = target
        self._clock = clock
        self._watch = watch
        self._make = build
        self._seed = seed
        self._workloads: dict[str, Workload] = {}
        self._runs: dict[int, Run] = {}

    def follow_orders(self) -> Iterator[str]:
        """Carry out orders until rank 0 says that all is done; yields the name of each order
        first."""
        with Collector(time.perf_counter) as collector:
            while True:
                word, *given = self._comm.await_order()
                if word == "leave":
                    return
                yield word
                getattr(self, f"_{word}")(*given)
                collector.collect_if_due()
                self._watch.look_if_due()

    def _build(self, variant: str) -> None:
        with suppress(Unsupported):  # rank 0 reports it
            self._workloads[variant] = from_seed(self._seed, self._make, variant)

    def _gather(self, variant: str) -> None:
        with suppress(Diverged):  # rank 0 reports it
            self._comm.gather(self._workloads[variant], self._clock)

    def _run(self, variant: str, number: int, calls: int | None) -> None:
        workload = self._workloads[variant]
        if calls is None:
            began_ns = self._comm.start_together(workload)
            marks = mark_run(workload, self._clock)
        else:
            prepared, begin = prepare_window(workload, calls)
            began_ns = self._comm.start_together(prepared)
            marks = mark_window(workload, calls, self._clock, begin)
        notes = Notes() if workload.journal is None else workload.journal.read()
        self._runs[number] = resolve(self._clock, began_ns, marks, notes)

    def _report(self, number: int) -> None:
        self._comm.collect(self._runs[number], Run)
        self._runs = {later: run for later, run in self._runs.items() if later > number}

    def _device(self) -> None:
        self._comm.collect(self._watch.read(), RankDevice)

    def _memory(self, variant: str) -> None:
        found = look_at_memory(self._workloads[variant], self._target)
        self._comm.collect(summarize_memory(found), RankMemory | None)

    def _curves(self, variant: str) -> None:
        curves = self._workloads[variant].curves
        assert curves is not None
        # As far as rank 0 gets, if all have the same values; else rank 0 ends the job.
        with suppress(Diverged, CutShort):
            for _ in from_seed(self._seed, take_points, curves):
                pass

    def _drop(self, variant: str) -> None:
        self._workloads.pop(variant, None)
