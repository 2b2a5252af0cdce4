"""The stopwatch that instruments inside a workload press.

While the workload runs it only takes marks of the clock that times everything else; the times
between them are read afterwards, so that regions on a GPU are timed where they run, too. Hooks of
a backward pass may come from another thread than those of the forward pass.

What a rank notes while it runs a step of a job: when it came to each collective, and left it.

A rank that comes early waits for the last one. Side by side, the journals of all ranks show such
waiting from working, and both from moving data: `worker.rank_times`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flopwatch.devices.base import Clock
from flopwatch.errors import SuiteError


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one region took, of one run."""

    calls: int
    ns: float


class ClockStopwatch:
    """A `flopwatch.Stopwatch` for the runs of one sample."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[str, Any] = {}
        self._marks: dict[str, list[Any]] = {}
        """By region: start, stop, start, stop, ..."""

    def start(self, region: str) -> None:
        with self._lock:
            if region in self._running:
                raise SuiteError(
                    f"region {region!r} is started again before it was stopped; give regions that "
                    "overlap names of their own"
                )
            self._running[region] = self._clock.mark()

    def stop(self, region: str) -> None:
        mark = self._clock.mark()
        with self._lock:
            if region not in self._running:
                raise SuiteError(f"region {region!r} is stopped but not started; start it first")
            self._marks.setdefault(region, []).extend((self._running.pop(region), mark))

    def read(self, calls_per_sample: int, phases: Collection[str]) -> dict[str, Reading]:
        """What each region took in one of the runs that were made."""
        if self._running:
            raise SuiteError(
                f"region {min(self._running)!r} is started but not stopped; stop it before the run "
                "is over"
            )
        readings = {}
        for region, marks in self._marks.items():
            phase, _, part = region.partition("/")
            if phase not in phases or not part:
                raise SuiteError(
                    f"region {region!r} is not named phase/region, with a phase of its workload "
                    f"({', '.join(phases)})"
                )
            calls, rest = divmod(len(marks) // 2, calls_per_sample)
            if rest:
                raise SuiteError(
                    f"region {region!r} is not run equally often in every run; instrument a part "
                    "that is"
                )
            # Every second one: between a stop and the next start nothing is of interest.
            ns = sum(self._clock.elapsed_ns(marks)[::2])
            readings[region] = Reading(calls=calls, ns=ns / calls_per_sample)
        return readings


@dataclass(frozen=True, slots=True)
class Visit:
    """Marks of the clock. A rank that does not stop at a collective, since it has other work to do
    meanwhile, has not left it where it arrived: `left` is None."""

    arrived: Any
    left: Any | None


class Journal:
    """Of one workload on one rank; the engine clears it before a run and reads it after."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.visits: list[Visit] = []

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Around a collective that the rank is stopped by until it is done."""
        arrived = self.clock.mark()
        yield
        self.visits.append(Visit(arrived, self.clock.mark()))

    def pass_by(self) -> None:
        """At a collective that goes on in the background."""
        self.visits.append(Visit(self.clock.mark(), None))

    def clear(self) -> None:
        self.visits = []
