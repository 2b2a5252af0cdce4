"""Whether a process that has served a request can serve another one as if it were new.

Whatever a request may have changed for the next one is compared with what was there before: what
torch can be switched to, variables, threads, child processes, memory of the device. Where anything
differs, the process is not used again: a fresh one costs seconds, a wrong number costs more.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import psutil

from flopwatch.worker.communicator import PUBLISHED
from flopwatch.worker.compilation import count_graphs, is_compiler_used

LEFT_BYTES = 64 * 2**20
"""Of a device's memory that libraries keep for themselves: workspaces for matmuls take up to
32 MiB on each stream."""

COMPILER_VARIABLES = "TORCHINDUCTOR_"
"""The compiler sets some when a part of it is loaded. Who compiles is known by `graphs`."""
SWITCHES = ("get_default_dtype", "get_num_interop_threads", "is_grad_enabled")
ENDINGS = (
    *("_enabled", "_deterministic", "_benchmark", "_immediate", "_backend", "_order", "_device"),
    *("_algorithms", "_warn_only", "_memory", "_tf32", "_precision", "_reduction"),
    *("_accumulation", "_experimental", "_qengine", "_mode", "_kernel"),
)
"""Of the names of getters in torch's C library that tell how a switch is set."""
PRECISIONS = tuple(f"{part}fp32_precision" for part in ("", "matmul.", "conv.", "rnn."))
"""Attributes of the modules of torch.backends: how a library may round float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessState:
    variables: dict[str, str]
    folder: str | None
    switches: dict[str, str]
    threads: frozenset[int | None]
    children: frozenset[int]
    graphs: int
    """That torch.compile has made: what it learns from one case changes how it treats the next."""


def read_state() -> ProcessState:
    return ProcessState(
        variables={
            name: value
            for name, value in os.environ.items()
            if name not in PUBLISHED and not name.startswith(COMPILER_VARIABLES)
        },
        folder=_find_folder(),
        switches=_read_switches(),
        threads=frozenset(thread.ident for thread in threading.enumerate()),
        children=frozenset(child.pid for child in psutil.Process().children()),
        graphs=count_graphs() if is_compiler_used() else 0,
    )


def _read_switches() -> dict[str, str]:
    import torch

    getters: dict[str, Callable[[], Any]] = {name: getattr(torch, name) for name in SWITCHES}
    for name in dir(torch._C):
        if name.startswith("_get_") and name.endswith(ENDINGS):
            getters[name] = getattr(torch._C, name)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.backends"):
            for precision in PRECISIONS:
                getters[f"{name}.{precision}"] = partial(attrgetter(precision), module)
    return {name: _read(getter) for name, getter in getters.items()}


def _read(getter: Callable[[], Any]) -> str:
    """As text. Not all modules have all, and some raise where settings contradict each other."""
    try:
        return repr(getter())
    except Exception as error:
        return repr(error)


def _find_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def restore(before: ProcessState, data_limits: tuple[int, int]) -> bool:
    """Let go of what a request has left, its limit of memory included; whether the process is then
    as it was before."""
    sys.stdout.flush()
    gc.collect()
    gc.enable()
    resource.setrlimit(resource.RLIMIT_DATA, data_limits)
    return _empty_device() and not _is_distributed() and read_state() == before


def _empty_device() -> bool:
    """Whether the device is in order, and nothing of note is left in its memory."""
    import torch

    if not torch.accelerator.is_available():
        return True
    try:
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        left_bytes = torch.accelerator.memory_allocated()
    except Exception:  # it has failed since, or does not count its memory
        return False
    return bool(left_bytes <= LEFT_BYTES)


def _is_distributed() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())
