"""Peak memory of tensors on a CPU.

There is no allocator to ask, as there is on a GPU: what the process holds says nothing, since freed
memory is kept. But torch's profiler hears of every allocation and release of a tensor, also of
those inside backward passes and custom functions, with the sum of all that is allocated. It knows
the size only of what was allocated while it was listening. So the workload runs twice: what the
first run leaves behind (gradients, caches) the second may release or replace.

What is allocated by threads that the workload itself has started is not heard.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

MARK_BYTES = 1_000_003
"""A tensor of an odd size marks the beginning of the second run, and shows that we are heard."""
MAX_TRACE_BYTES = 1 << 29
"""More would take longer to read than anybody would wait for a number."""


class Detail(msgspec.Struct, rename={"total": "Total Allocated", "size": "Bytes", "at": "Addr"}):
    total: int = 0
    size: int = 0
    at: int = 0


class Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    args: Detail | None = None


class Trace(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")


def measure_peak_bytes(prepare: Callable[[], object], run: Callable[[], object]) -> int | None:
    """Most bytes of tensors that a run holds beyond what was there before it; None: unknown.

    `prepare` is called before each run and does not count.
    """
    import torch
    from torch.autograd.profiler import profile

    # Not torch.profiler, which is the same but imports a compiler first, for seconds.
    with _muted(), profile(profile_memory=True) as profiler:
        prepare()
        run()
        prepare()
        mark = torch.empty(MARK_BYTES, dtype=torch.uint8)
        run()
    with tempfile.TemporaryDirectory(prefix="flopwatch-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > MAX_TRACE_BYTES:
            return None
        trace = msgspec.json.decode(path.read_bytes(), type=Trace)
    return find_peak_bytes(trace, mark.data_ptr())


def find_peak_bytes(trace: Trace, mark_address: int) -> int | None:
    """The highest sum of allocated bytes since the mark was allocated, beyond the sum then.

    None where the mark was not heard, or after it not a single operation of torch: then the
    workload does its work elsewhere.
    """
    heard = [(event.ts, event.args) for event in trace.events if event.name == "[memory]"]
    known = [(ts, detail) for ts, detail in heard if detail is not None]
    marks = [(ts, d) for ts, d in known if (d.at, d.size) == (mark_address, MARK_BYTES)]
    if not marks:
        return None
    # The last: an earlier one was released before the mark took its place.
    since, mark = max(marks, key=lambda found: found[0])
    if not any(event.cat == "cpu_op" and event.ts >= since for event in trace.events):
        return None
    return max(detail.total for ts, detail in known if ts >= since) - mark.total


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
