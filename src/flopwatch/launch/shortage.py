"""What speaks for it that a worker was killed for lack of memory.

Who is killed learns no reason, and anybody may have done it. But the system counts whom it kills
when memory runs out, and knows how large each process was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from flopwatch.report.units import format_bytes
from flopwatch.room import PROCESS_BYTES

NEAR = 0.8
"""Share of the memory that there is, from which on it may well have run out between two looks."""
COUNTER = "oom_kill"

Read = Callable[[str], str]


def read_text(path: str) -> str:
    """Empty where there is no such file."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def count_kills(read: Read = read_text) -> int | None:
    """How often the system has killed for lack of memory: in this process's control group, or else
    on the whole machine; None where it does not tell."""
    for path in (*_list_group_files(read("/proc/self/cgroup")), "/proc/vmstat"):
        for line in read(path).splitlines():
            name, _, number = line.partition(" ")
            if name == COUNTER and number.isdecimal():
                return int(number)
    return None


def _list_group_files(groups: str) -> list[str]:
    """Where the counter of this process's group is, in both versions of control groups.

    >>> _list_group_files("4:memory:/job\\n0::/")
    ['/sys/fs/cgroup/memory/job/memory.oom_control', '/sys/fs/cgroup/memory.events']
    """
    files = []
    for line in groups.splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        folder = path.rstrip("/")
        if "memory" in controllers.split(","):
            files.append(f"/sys/fs/cgroup/memory{folder}/memory.oom_control")
        elif not controllers:
            files.append(f"/sys/fs/cgroup{folder}/memory.events")
    return files


class Watch:
    """Of one worker, from its start on. `room_bytes` is what it can take."""

    def __init__(self, room_bytes: int, read: Read = read_text) -> None:
        self._read = read
        self._room_bytes = room_bytes
        self._kills = count_kills(read)

    def explain(self, peak_bytes: int | None) -> str | None:
        """What speaks for a lack of memory; None where nothing does. `peak_bytes` is the worker's
        largest resident size, where that is known."""
        kills = count_kills(self._read)
        if kills is not None and self._kills is not None and kills > self._kills:
            return "the system has counted such a kill since it was started"
        # Libraries are resident too, and shared with other processes.
        if peak_bytes is None or peak_bytes - PROCESS_BYTES < NEAR * self._room_bytes:
            return None
        return f"it held {format_bytes(peak_bytes)} of {format_bytes(self._room_bytes)}"


def find_room(request: Mapping[str, Any]) -> int:
    """What the worker of a request can take: ranks of one machine share what there is."""
    total_bytes: int = psutil.virtual_memory().total
    limit_bytes = request.get("settings", {}).get("memory_limit_bytes") or total_bytes
    sharers: int = (request.get("seat") or {}).get("local_ranks", 1)
    return int(min(total_bytes, limit_bytes)) // sharers
