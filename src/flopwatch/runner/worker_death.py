"""Why a worker has ended without a report, or does not go on.

A process that is killed gets no reason. But the system counts its kills when memory runs out, and
knows how large each process was: both are signs of an out-of-memory kill.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from flopwatch.output.units import format_bytes
from flopwatch.runner.memory_fit import PROCESS_BYTES
from flopwatch.worker.failure import OUT_OF_MEMORY, Failure

NEAR = 0.8
"""A process that held this share of the memory may well have run out of it."""
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
    on the whole machine; None where it is not known."""
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


class MemoryWatch:
    """Of one worker, from its start on. `available_bytes` is what it can take."""

    def __init__(self, available_bytes: int, read: Read = read_text) -> None:
        self._read = read
        self._available_bytes = available_bytes
        self._kills = count_kills(read)

    def explain(self, peak_bytes: int | None) -> str | None:
        """The sign of an out-of-memory kill; None where there is none. `peak_bytes` is the worker's
        largest resident size, where that is known."""
        kills = count_kills(self._read)
        if kills is not None and self._kills is not None and kills > self._kills:
            return "the system has counted an out-of-memory kill since it was started"
        # Libraries are resident too, and shared with other processes.
        if peak_bytes is None or peak_bytes - PROCESS_BYTES < NEAR * self._available_bytes:
            return None
        return f"it held {format_bytes(peak_bytes)} of {format_bytes(self._available_bytes)}"


def explain_death(
    exit_code: int, stage: str, log_tail: str, shortage: str | None = None
) -> Failure:
    """Of a worker that ended without a report; `shortage` is a sign of an out-of-memory kill."""
    if exit_code == -signal.SIGKILL and shortage is not None:
        return Failure(
            "oom",
            f"killed by the system during {stage}, most likely because memory ran out: {shortage}; "
            "lower --memory-limit so that it fails cleanly",
        )
    if exit_code == -signal.SIGKILL:
        return Failure(
            "crash",
            f"killed by SIGKILL during {stage}, by a user or another program: no sign of an "
            "out-of-memory kill; --rerun measures it again",
        )
    hint = EXIT_HINTS.get(exit_code, "")
    end = f"{describe_exit(exit_code)} during {stage}{hint}"
    # An exception in a thread of a library, such as NCCL's, ends the process.
    thrown = log_tail.rpartition(TERMINATED)[2] if TERMINATED in log_tail else ""
    is_short = exit_code == -signal.SIGABRT and OUT_OF_MEMORY.search(thrown) is not None
    return Failure("oom" if is_short else "crash", end + _describe_end(log_tail))


TERMINATED = "terminate called after throwing"
"""What C++ prints before it ends a process for an exception that nobody has caught."""


EXIT_HINTS = {
    -signal.SIGILL: ": an instruction that this CPU announces but does not have; "
    "see `flopwatch doctor`",
}


def describe_exit(exit_code: int | None) -> str:
    """None where it is not known.

    >>> describe_exit(-11)
    'died with SIGSEGV'
    """
    if exit_code is None:
        return "has closed its connection"
    if exit_code >= 0:
        return f"left with exit code {exit_code}"
    try:
        return f"died with {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal
        return f"died with signal {-exit_code}"


SHORTAGES = ("bad_alloc", "cannot allocate memory", "resource temporarily unavailable")
"""What libraries print before they end a process that gets no memory, in small letters."""


def _describe_end(log_tail: str) -> str:
    """The last line of the log; and where memory was short, the line that says so."""
    last = _find_last_line(log_tail)
    for line in log_tail.splitlines():
        complaint = line.strip()[:200]
        if any(text in complaint.lower() for text in SHORTAGES) and complaint not in last:
            return f"{last} ({complaint})"
    return last


def explain_hang(silence_limit_s: float, stage: str, log_tail: str) -> str:
    return (
        f"no progress for {silence_limit_s:g} s during {stage}{_find_last_line(log_tail)}; "
        "raise --timeout if it is only slow"
    )


def explain_hang_of_ranks(silence_limit_s: float, stage: str, stacks: Sequence[str | None]) -> str:
    """By the stacks of all ranks: a rank that waits in a collective is not the cause."""
    first, *others = stacks
    collective = find_collective(first or "")
    if collective is None:
        begin = f"rank 0: no progress for {silence_limit_s:g} s during {stage}"
        found = [begin + _find_last_line(first or "")]
    else:
        begin = f"rank 0 waits for another rank in {collective}"
        found = [f"{begin}: no progress for {silence_limit_s:g} s during {stage}"]
    for rank, stack in enumerate(others, 1):
        if stack == "":
            found.append(f"rank {rank} does not answer, as if it were stopped")
        elif stack is not None and collective is not None and find_collective(stack) is None:
            found.append(f"rank {rank} is{_find_last_line(stack) or ' elsewhere'}")
    return "; ".join([*found, "raise --timeout if it is only slow"])


def find_collective(stack: str) -> str | None:
    """The function of torch.distributed that a stack of faulthandler's ends in.

    >>> find_collective('File "/x/torch/distributed/distributed_c10d.py", line 7 in all_reduce')
    'all_reduce'
    """
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith('File "')]
    if not frames or "/torch/distributed/" not in frames[0]:
        return None
    return frames[0].rpartition(" in ")[2]


def _find_last_line(log_tail: str) -> str:
    """The user's own line in the stack that faulthandler wrote, or else the last line."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    stack = [line for line in lines if line.startswith('File "') and "/flopwatch/" not in line]
    if stack:
        path, _, rest = stack[0].removeprefix('File "').partition('"')
        return f" at {path.rpartition('/')[2]}{rest.replace(', line ', ':', 1)}"
    plain = [line for line in lines if not line.startswith(("File ", "Current thread", "Fatal"))]
    return f" ({plain[-1][:200]})" if plain else ""
