"""Limits of a worker process: memory, threads, its lifetime."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

from flopwatch.settings import PROBE_SHARE

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process when its parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(limit_bytes: int | None) -> None:
    """Make allocations beyond the limit fail, so that they raise instead of filling the machine.

    RLIMIT_DATA counts private writable memory: what programs allocate. RLIMIT_AS would also
    count address space that is only reserved, of which torch and CUDA take a great deal.
    """
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a record, not a core file


def leave_spare() -> None:
    """Do without a part of the GPU's memory."""
    import torch

    torch.cuda.set_per_process_memory_fraction(PROBE_SHARE)


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
    """Threads of this process; None where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None
