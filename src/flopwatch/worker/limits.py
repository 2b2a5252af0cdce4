"""Limits of a process, a worker's above all: memory, threads, its lifetime.

Garbage collection outside of samples.

Python's cyclic collector runs whenever enough objects were made, which is in the middle of some
sample. While sampling it is switched off, and called between rounds instead, so that workloads
that make reference cycles do not fill the memory.

And the same random seed for all variants.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STATM = Path("/proc/self/statm")
DATA_FIELD = 5
"""Of statm: private writable memory, in pages."""
BUSY_FACTOR = 6
"""A worker may be silent so many times longer than usual while it builds, compiles or checks, as
long as it can be seen at work."""
SPARE_BYTES = 32 * 2**20
"""A process with less than this left cannot start a few threads."""


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, in whatever session (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def limit_memory(limit_bytes: int | None) -> None:
    """Make allocations beyond the limit fail, so that they raise instead of filling the machine.

    RLIMIT_DATA counts private writable memory: what programs allocate. RLIMIT_AS would also
    count address space that is only reserved, of which torch and CUDA take a great deal.
    """
    if limit_bytes is not None:
        _, most_bytes = resource.getrlimit(resource.RLIMIT_DATA)
        if most_bytes != resource.RLIM_INFINITY:
            limit_bytes = min(limit_bytes, most_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a record, not a core file


def read_limit() -> int | None:
    """What this process may take; None where there is no limit."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes


def lift_memory() -> int | None:
    """End the limit, in a process that has failed and only has to say why; gives what it was."""
    limit_bytes = read_limit()
    _, most_bytes = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    return limit_bytes


@contextmanager
def limiting_memory(spare_bytes: int) -> Iterator[None]:
    """Meanwhile this process may take so much more than it holds."""
    soft_bytes, most_bytes = resource.getrlimit(resource.RLIMIT_DATA)
    held_bytes = count_held_bytes()
    if held_bytes is not None and soft_bytes == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (held_bytes + spare_bytes, most_bytes))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft_bytes, most_bytes))


def count_held_bytes(statm: Path = STATM) -> int | None:
    """Private writable memory of this process; None where that is not known."""
    try:
        return int(statm.read_text().split()[DATA_FIELD]) * resource.getpagesize()
    except (OSError, IndexError, ValueError, MemoryError):
        return None


def describe_shortage(limit_bytes: int | None, statm: Path = STATM) -> str | None:
    """That this process has next to nothing left of what it may take; None where it has, or where
    that is not known."""
    used_bytes = None if limit_bytes is None else count_held_bytes(statm)
    if limit_bytes is None or used_bytes is None or used_bytes < limit_bytes - SPARE_BYTES:
        return None
    return (
        f"its process holds {used_bytes / 2**20:.0f} MiB and may hold {limit_bytes / 2**20:.0f} "
        "MiB; raise --memory-limit, which ranks of one node share"
    )


def limit_threads(threads: int) -> None:
    """Set the threads of torch and of the BLAS libraries that are loaded."""
    import torch

    torch.set_num_threads(threads)
    if "numpy" in sys.modules:
        from threadpoolctl import threadpool_limits

        threadpool_limits(limits=threads, user_api="blas")


def thread_environment(threads: int) -> dict[str, str]:
    """Variables for the warm server. BLAS starts at one thread there, since it makes its threads
    when it is loaded and a process with threads should not fork; `limit_threads` raises it."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
    }


def count_threads() -> int | None:
    """Threads of this process; None where that is not known."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


SHARE = 0.02
"""Collecting between rounds may take this share of the time."""


class Collector:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._was_enabled = False
        self._due_s = 0.0

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        gc.disable()
        self._collect()
        return self

    def __exit__(self, *error: object) -> None:
        if self._was_enabled:
            gc.enable()

    def collect_if_due(self) -> None:
        if self._now_s() >= self._due_s:
            self._collect()

    def _collect(self) -> None:
        start_s = self._now_s()
        gc.collect()
        end_s = self._now_s()
        self._due_s = end_s + max(1.0, (end_s - start_s) / SHARE)


Given = TypeVar("Given")
Made = TypeVar("Made")


def from_seed(seed: int, make: Callable[[Given], Made], given: Given) -> Made:
    """Call it with all random generators in the same state for every variant."""
    seed_all(seed)
    return make(given)


def seed_all(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
