"""Background load: how much of the machine other programs use while a run measures.

The load average says it badly: it is a minute late, and counts the run's own threads. Here the time
of all cores is read twice, and what the run's own processes took of it meanwhile is taken off.

How undisturbed a core is: the clock is read without a pause, and gaps are looked for.

A loop that does nothing else sees readings tens of nanoseconds apart. A gap of more than 50 µs is
time in which the core did something else: an interrupt, another process, or another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from flopwatch import env

BUSY = ("user", "nice", "system", "irq", "softirq")
STOLEN = "steal"
"""By other virtual machines: records have it apart."""
SHORTEST_S = 0.5
"""The system counts in steps of 10 ms: over less time the share would be one of those."""


class LoadWatch:
    """Reads shares of the time since the one before, or since it was made."""

    def __init__(self) -> None:
        self._read_at_s, self._background_s = time.monotonic(), read_background_s()

    def read_share(self, environ: env.Environ = None) -> float | None:
        """Of all cores; None where too little time has passed, or torchrun has started ranks,
        which are not descendants of this process."""
        elapsed_s = time.monotonic() - self._read_at_s
        if elapsed_s < SHORTEST_S or env.read("TORCHELASTIC_RUN_ID", environ):
            return None
        background_s = read_background_s()
        share = (background_s - self._background_s) / (elapsed_s * (psutil.cpu_count() or 1))
        self._read_at_s, self._background_s = time.monotonic(), background_s
        return min(1.0, max(0.0, share))


def read_background_s(kinds: Sequence[str] = BUSY) -> float:
    """Time of cores since the machine was started, of these kinds, without what this process and
    its descendants have used, those that have ended included."""
    times = psutil.cpu_times()._asdict()
    busy_s: float = sum(times.get(name, 0.0) for name in kinds)
    return busy_s - sum(map(_read_own_s, _list_own()))


def _list_own() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _read_own_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has just ended, and its parent counts it
        return 0.0
    return float(sum(times[:4]))  # its own and that of children it has waited for


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
