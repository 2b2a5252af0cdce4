"""Functions that a worker calls for a command that must not import torch.

A request names a function of this table, and no other is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from flopwatch.devices import environment
from flopwatch.devices.base import open_backend
from flopwatch.devices.kinds import is_host
from flopwatch.devices.matmul_rates import measure_rate
from flopwatch.errors import UsageError
from flopwatch.settings import Allocator, Device
from flopwatch.worker import allocator as allocators

FUNCTIONS = {
    "read_torch_environment": "flopwatch.worker.called_functions:read_torch_environment",
    "measure_speed": "flopwatch.worker.called_functions:measure_speed",
    "compute_columns": "flopwatch.worker.group:compute_columns",
    "measure_peaks": "flopwatch.devices.peak_measurement:measure",
    "measure_collectives": "flopwatch.devices.peak_measurement:measure_collectives",
    "find_capacity": "flopwatch.prediction.memory_capacity:survey",
    "observe_precision": "flopwatch.worker.precision_effects:observe",
    "profile_step": "flopwatch.worker.profiler:profile",
}
"""By the name that requests use: where it is. It is imported when it is called."""


def find_function(name: str) -> Callable[..., Any]:
    if name not in FUNCTIONS:
        raise UsageError(
            f"there is no function {name!r} for workers to call; register it in "
            f"worker/called_functions.py, or choose one of {', '.join(FUNCTIONS)}"
        )
    module, _, function = FUNCTIONS[name].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def read_torch_environment(allocator: Allocator) -> dict[str, Any]:
    """What only a process with torch knows: its build, and the allocator in force."""
    return {"torch": environment.torch_build(), "allocator": allocators.apply(allocator)}


def measure_speed(dtypes: Sequence[str], device: Device) -> dict[str, Any]:
    """FLOP/s of a matmul in each of the dtypes that torch multiplies, and how many times longer
    that took than the processor time of all threads: without other programs, they are busy all the
    time."""
    import torch

    clock = open_backend(device).clock
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))  # threads are started
    started_s, busy_s = time.perf_counter(), time.process_time()
    rates = {dtype: measure_rate(dtype, device, clock) for dtype in dtypes}
    elapsed_s, busy_s = time.perf_counter() - started_s, time.process_time() - busy_s
    slowdown = elapsed_s * torch.get_num_threads() / max(busy_s, 1e-9) if is_host(device) else 1.0
    return {
        "rates": {dtype: rate for dtype, rate in rates.items() if rate is not None},
        "slowdown": max(slowdown, 1.0),
    }
