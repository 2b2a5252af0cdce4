"""One sample: runs of a workload with marks of a clock between their phases.

Runs are prepared one by one, each before it is timed; or where a device works through a queue and
the workload allows it, many at once, as a window that the caller runs through without a pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from flopwatch.devices.base import Clock
from flopwatch.suites.workload import Workload
from flopwatch.worker.rank_times import fold


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """One sample."""

    phase_ns: list[float]
    """Of each phase, all runs together."""
    enqueue_ns: float
    """How long the caller was inside of them, by its own clock."""
    drain_ns: float
    """How long it then waited for the device."""


def time_phases(
    workload: Workload,
    calls: int,
    clock: Clock,
    evict: Callable[[], object] | None = None,
) -> list[float]:
    """Nanoseconds of each phase, over `calls` runs of all of them."""
    return take_sample(workload, calls, clock, evict).phase_ns


def take_sample(
    workload: Workload,
    calls: int,
    clock: Clock,
    evict: Callable[[], object] | None = None,
    drain: Callable[[], object] | None = None,
    now_ns: Callable[[], float] = time.perf_counter_ns,
) -> Taken:
    windows, enqueue_ns = _run_sample(workload, calls, clock, evict, now_ns)
    ended_ns = now_ns()
    if drain is not None:
        drain()
    drain_ns = now_ns() - ended_ns
    # Read at the end: on a GPU this is where the caller waits for the device.
    elapsed_ns = [ns for marks in windows for ns in clock.elapsed_ns(marks)]
    return Taken(
        phase_ns=fold(elapsed_ns, len(workload.phases)), enqueue_ns=enqueue_ns, drain_ns=drain_ns
    )


def _run_sample(
    workload: Workload,
    calls: int,
    clock: Clock,
    evict: Callable[[], object] | None,
    now_ns: Callable[[], float],
) -> tuple[list[list[Any]], float]:
    """The marks of all runs that follow each other without a pause, and how long calling took."""
    if workload.ahead is not None and evict is None:
        begin = workload.ahead(calls)
        started_ns = now_ns()
        return [mark_window(workload, calls, clock, begin)], now_ns() - started_ns
    first, *others = workload.phases.values()
    if not others and workload.reset is None and evict is None:
        started_ns = now_ns()
        marks = [clock.mark()]
        for _ in repeat(None, calls):
            first()
        marks.append(clock.mark())
        return [marks], now_ns() - started_ns
    # Every run is a whole one, reset included: without that, the second backward of a loop would
    # add to the gradients of the first, and a variant's time would depend on its number of calls.
    runs, enqueue_ns = [], 0.0
    for _ in repeat(None, calls):
        if workload.reset is not None:
            workload.reset()
        if evict is not None:
            evict()
        started_ns = now_ns()
        runs.append(mark_run(workload, clock))
        enqueue_ns += now_ns() - started_ns
    return runs, enqueue_ns


def mark_run(workload: Workload, clock: Clock) -> list[Any]:
    """Run all phases once, with a mark before, between and after them."""
    passed: tuple[Any, ...] = ()
    marks = [clock.mark()]
    for phase in workload.phases.values():
        passed = (phase(*passed),)
        marks.append(clock.mark())
    return marks


def mark_window(
    workload: Workload, calls: int, clock: Clock, begin: Callable[[], object]
) -> list[Any]:
    """Many runs without a pause, with a mark before the first and after every phase."""
    marks = [clock.mark()]
    for _ in repeat(None, calls):
        begin()
        passed: tuple[Any, ...] = ()
        for phase in workload.phases.values():
            passed = (phase(*passed),)
            marks.append(clock.mark())
    return marks
