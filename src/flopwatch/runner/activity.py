"""Whether a silent process is at work, seen from outside.

A worker that loads libraries from a slow disk, fills the parameters of a large model or compiles
says nothing meanwhile, and neither does one that hangs. But the former reads and writes files, and
it and the compilers that it starts use processor time. A process that waits in vain for another
rank may use processor time as well, since some libraries spin while they wait: so that counts only
where nobody is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

ALONE = ("starting", "loading", "build")
"""Stages in which a process waits for no other."""
UNTIMED = (*ALONE, "check", "reference")
"""Stages in which nothing is measured yet, and may take long."""
BUSY_SHARE = 0.05
"""Of a core."""
MOVED_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Of processes since their start, with all that they have started."""

    at_s: float
    own_cpu_s: float = 0.0
    others_cpu_s: float = 0.0
    """Of processes that they have started."""
    moved_bytes: int = 0
    """That they have read and written."""


def read_usage(pids: Sequence[int], now_s: Callable[[], float] = time.monotonic) -> Usage:
    own_s, others_s, moved_bytes = 0.0, 0.0, 0
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            times = process.cpu_times()
            own_s += times.user + times.system
            others_s += times.children_user + times.children_system
            moved_bytes += _count_bytes(process)
            for other in process.children(recursive=True):
                with suppress(psutil.Error):
                    times = other.cpu_times()
                    others_s += times.user + times.system
                    moved_bytes += _count_bytes(other)
    return Usage(at_s=now_s(), own_cpu_s=own_s, others_cpu_s=others_s, moved_bytes=moved_bytes)


def _count_bytes(process: psutil.Process) -> int:
    """None are known on some systems."""
    counters = process.io_counters() if hasattr(process, "io_counters") else None
    return 0 if counters is None else counters.read_chars + counters.write_chars


def is_any_stopped(pids: Sequence[int]) -> bool:
    """Whether a signal has stopped one of them (SIGSTOP, Ctrl-Z): it goes on with nothing."""
    for pid in pids:
        with suppress(psutil.Error):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return True
    return False


def is_at_work(before: Usage, now: Usage, stage: str) -> bool:
    """Whether the processes, which are at this stage, have done anything since."""
    if stage not in UNTIMED:
        return False
    cpu_s = now.others_cpu_s - before.others_cpu_s
    if stage in ALONE:
        cpu_s += now.own_cpu_s - before.own_cpu_s
    is_busy = cpu_s > BUSY_SHARE * (now.at_s - before.at_s)
    return is_busy or now.moved_bytes - before.moved_bytes > MOVED_BYTES
