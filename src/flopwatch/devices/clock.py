"""Clocks: marks in time, and the nanoseconds between them.

A sample's phases are timed by one clock, as ``mark, phase, mark, phase, mark``. On a CPU a mark is
the time now. On a GPU work is only queued by the call, so a mark is an event in the same queue:
phases are timed where they run, with no synchronisation between them to distort them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from flopwatch.analysis.statistics import median


class Clock(Protocol):
    name: str

    @property
    def resolution_ns(self) -> float:
        """The shortest time that can be measured, a mark's own cost included."""

    def mark(self) -> Any: ...

    def elapsed_ns(self, marks: Sequence[Any]) -> list[float]:
        """The times between successive marks, once all of them have passed."""


class CpuClock:
    """`perf_counter_ns`: monotonic, and not slewed within a measurement."""

    name = "perf_counter"

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.mark = now_ns

    @cached_property
    def resolution_ns(self) -> float:
        steps = []
        for _ in range(200):
            start = self.mark()
            end = self.mark()
            while end == start:  # a clock coarser than its own cost
                end = self.mark()
            steps.append(end - start)
        return median(steps)

    def elapsed_ns(self, marks: Sequence[int]) -> list[float]:
        return [end - start for start, end in zip(marks, marks[1:], strict=False)]


class CudaClock:
    """CUDA events on the current stream of the current device.

    `cuda` is ``torch.cuda``, or something like it in a test.
    """

    name = "cuda events"
    resolution_ns = 500.0  # documented resolution of cudaEventElapsedTime

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ns(self, marks: Sequence[Any]) -> list[float]:
        self._cuda.synchronize()
        return [
            start.elapsed_time(end) * 1e6  # milliseconds
            for start, end in zip(marks, marks[1:], strict=False)
        ]
