"""How undisturbed a core is: the clock is read without a pause, and gaps are looked for.

A loop that does nothing else sees readings tens of nanoseconds apart. A gap of more than 50 µs is
time in which the core did something else: an interrupt, another process, or another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

GAP_NS = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Jitter:
    """How undisturbed one core is."""

    duration_ns: int
    stolen_ns: int
    """The sum of all gaps over 50 µs."""
    gaps: int
    largest_gap_ns: int
    resolution_ns: int
    """The smallest step that was seen; the clock may be finer than a reading takes."""
    reading_ns: float
    """What one reading costs, with the loop around it."""

    @property
    def stolen_share(self) -> float:
        return self.stolen_ns / self.duration_ns


def measure_jitter(
    seconds: float = 0.5, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> Jitter:
    """Watch the clock for gaps."""
    start = last = clock_ns()
    end = start + int(seconds * 1e9)
    stolen = gaps = largest = readings = 0
    resolution = end - start
    while last < end:
        now = clock_ns()
        step = now - last
        last = now
        readings += 1
        if step > GAP_NS:
            gaps += 1
            stolen += step
        largest = max(largest, step)
        if 0 < step < resolution:
            resolution = step
    return Jitter(
        duration_ns=last - start,
        stolen_ns=stolen,
        gaps=gaps,
        largest_gap_ns=largest,
        resolution_ns=resolution,
        reading_ns=(last - start - stolen) / readings,
    )
