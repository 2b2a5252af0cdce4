"""Memory of tensors on a CPU, by phase of a run.

There is no allocator to ask, as there is on a GPU: what the process holds says nothing, since freed
memory is kept. But torch's profiler hears of every allocation and release of a tensor, also of
those inside backward passes and custom functions, with the sum of all that is allocated. It knows
the size only of what was allocated while it was listening. So the workload runs twice: what the
first run leaves behind (gradients, caches) the second may release or replace.

What is allocated by threads that the workload itself has started is not heard. What was there
before is counted by asking Python for all its tensors.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.records.record import PhaseMemory

MARK_BYTES = 1_000_003
"""A tensor of an odd size marks the beginning of the second run, and shows that we are heard."""
MAX_TRACE_BYTES = 1 << 29
"""More would take longer to read than anybody would wait for a number."""


PHASE = "flopwatch: "
"""What a phase is called in the trace, before its own name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    resident_bytes: int
    """Tensors that were there before the run."""
    phases: Mapping[str, PhaseMemory]

    @property
    def peak_bytes(self) -> int:
        """Of the run, beyond what was there before it."""
        return max((phase.peak_bytes for phase in self.phases.values()), default=0)


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

    None where the mark was not heard, or after it not a single operation of torch: then the
    workload does its work elsewhere.
    """
    heard = [(event.ts, event.args) for event in trace.events if event.name == "[memory]"]
    known = sorted(((ts, d) for ts, d in heard if d is not None), key=lambda found: found[0])
    marks = [(ts, d) for ts, d in known if (d.at, d.size) == (mark_address, MARK_BYTES)]
    if not marks:
        return None
    # The last: an earlier one was released before the mark took its place.
    since, mark = marks[-1]
    if not any(event.cat == "cpu_op" and event.ts >= since for event in trace.events):
        return None
    later = [(ts, detail.total - mark.total) for ts, detail in known if ts >= since]
    runs = {event.name: event for event in trace.events if _is_phase(event, since)}
    ordered = sorted(runs.values(), key=lambda event: event.ts)
    return {event.name.removeprefix(PHASE): _look_at(event, later) for event in ordered}


def _is_phase(event: Event, since: float) -> bool:
    return event.name.startswith(PHASE) and event.cat == "user_annotation" and event.ts >= since


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
