"""CPUs: the clock, the caches, and memory of tensors by phase of a run.

There is no allocator to ask for memory, as there is on a GPU: what the process holds says nothing,
since freed memory is kept. But torch's profiler records every allocation and release of a tensor,
also of those inside backward passes and custom functions, with the sum of all that is allocated. It
knows the size only of what was allocated while it was recording. So the workload runs twice: what
the first run leaves behind (gradients, caches) the second may release or replace.

What is allocated by threads that the workload itself has started is not recorded. What was there
before is counted by asking Python for all its tensors.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import psutil

from flopwatch.analysis.statistics import median
from flopwatch.devices import system_files
from flopwatch.devices.base import FALLBACK_CACHE_BYTES, Clock, Memory, Phases
from flopwatch.records.record import PhaseMemory

MARK_BYTES = 1_000_003
"""A tensor of an odd size marks the beginning of the second run, and shows that the profiler
records."""
MAX_TRACE_BYTES = 1 << 29
"""A larger trace would take longer to read than a number is worth."""
PHASE = "flopwatch: "
"""What a phase is called in the trace, before its own name."""


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


class CpuBackend:
    collectives = "gloo"

    def __init__(self, cache_bytes: int | None = None) -> None:
        self.clock: Clock = CpuClock()
        self._buffer_bytes = 2 * (cache_bytes or FALLBACK_CACHE_BYTES)

    @cached_property
    def _buffer(self) -> Any:
        import torch

        return torch.zeros(self._buffer_bytes // 4, dtype=torch.float32)

    def select(self, number: int) -> None:
        """Ranks share the cores."""

    def limit_memory(self, share: float) -> None:
        """The process has its limit already: `worker.limits`."""

    def synchronize(self) -> None:
        """Work is done when its calls return."""

    def find_cache_bytes(self) -> int:
        return system_files.read_last_level_caches_bytes() or FALLBACK_CACHE_BYTES

    def count_free_bytes(self) -> int:
        import resource  # not on Windows

        free_bytes: int = psutil.virtual_memory().available
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if limit_bytes == resource.RLIM_INFINITY:
            return free_bytes
        return min(free_bytes, limit_bytes - psutil.Process().memory_info().data)

    def evict(self) -> None:
        # Twice the last-level cache, by as many threads as the measurement uses, so that the
        # private caches of their cores are emptied too.
        self._buffer.add_(1)

    def look(self) -> None:
        """Clocks that change are seen in the samples only."""

    def throttle_reasons(self) -> list[str]:
        return []

    def measure_memory(self, prepare: Callable[[], object], phases: Phases) -> Memory | None:
        return measure_memory(prepare, phases)


class Detail(msgspec.Struct, rename={"total": "Total Allocated", "size": "Bytes", "at": "Addr"}):
    total: int = 0
    size: int = 0
    at: int = 0


class Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: Detail | None = None


class Trace(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")


def measure_memory(
    prepare: Callable[[], object], phases: Mapping[str, Callable[..., Any]]
) -> Memory | None:
    """What each phase of a run holds; None: unknown.

    `prepare` is called before each run and does not count.
    """
    import torch
    from torch.autograd.profiler import profile, record_function

    def run() -> None:
        passed: tuple[Any, ...] = ()
        for name, phase in phases.items():
            with record_function(PHASE + name):
                passed = (phase(*passed),)

    # Not torch.profiler, which is the same but imports a compiler first, for seconds.
    with _muted(), profile(profile_memory=True) as profiler:
        prepare()
        run()
        prepare()
        resident_bytes = count_held_bytes()
        mark = torch.empty(MARK_BYTES, dtype=torch.uint8)
        run()
    with tempfile.TemporaryDirectory(prefix="flopwatch-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > MAX_TRACE_BYTES:
            return None
        trace = msgspec.json.decode(path.read_bytes(), type=Trace)
    found = find_phases(trace, mark.data_ptr())
    return None if found is None else Memory(resident_bytes=resident_bytes, phases=found)


def count_held_bytes() -> int:
    """Of all CPU tensors that Python knows of; what several share counts once."""
    import torch

    sizes = {}
    # Other subclasses are wrappers around plain tensors, or fakes without memory.
    plain = (torch.Tensor, torch.nn.Parameter)
    for thing in gc.get_objects():
        if type(thing) in plain and thing.device.type == "cpu":
            try:
                storage = thing.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            except (RuntimeError, NotImplementedError):
                continue  # a tensor without memory of its own
    return sum(sizes.values())


def find_phases(trace: Trace, mark_address: int) -> dict[str, PhaseMemory] | None:
    """What the phases held since the mark was allocated, beyond the sum then.

    None where the mark was not recorded, or after it not a single operation of torch: then the
    workload does its work elsewhere.
    """
    known = [
        (event.ts, event.args)
        for event in sorted(trace.events, key=lambda event: event.ts)
        if event.name == "[memory]" and event.args is not None
    ]
    marks = [(ts, d) for ts, d in known if (d.at, d.size) == (mark_address, MARK_BYTES)]
    if not marks:
        return None
    # The last: an earlier one was released before the mark took its place.
    since, mark = marks[-1]
    if not any(event.cat == "cpu_op" and event.ts >= since for event in trace.events):
        return None
    later = [(ts, detail.total - mark.total) for ts, detail in known if ts >= since]
    runs = [
        event
        for event in sorted(trace.events, key=lambda event: event.ts)
        if event.name.startswith(PHASE) and event.cat == "user_annotation" and event.ts >= since
    ]
    return {event.name.removeprefix(PHASE): _look_at(event, later) for event in runs}


def _look_at(phase: Event, totals: list[tuple[float, int]]) -> PhaseMemory:
    """`totals` are bytes beyond the mark's, by time."""
    end = phase.ts + phase.dur
    at_start = [total for ts, total in totals if ts <= phase.ts][-1:]
    inside = [total for ts, total in totals if phase.ts < ts <= end]
    # Below what was there at first: something of the first run was released. It counts as nothing.
    reached = [0, *at_start, *inside]
    return PhaseMemory(peak_bytes=max(reached), end_bytes=max(0, (at_start + inside)[-1]))


@contextmanager
def _muted() -> Iterator[None]:
    """Without stderr: a worker's log is for its last words, and the profiler is chatty."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
