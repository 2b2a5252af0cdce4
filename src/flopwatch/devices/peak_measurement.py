"""What this machine can do at best: matmuls, memory, and collectives over ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from flopwatch.devices import environment
from flopwatch.devices.base import open_backend
from flopwatch.devices.best_times import Run, Trial, run_rounds
from flopwatch.devices.environment import BUSY, STOLEN, read_background_s
from flopwatch.devices.kinds import is_host
from flopwatch.devices.matmul_rates import MatmulSweep, find_arithmetic, list_curves
from flopwatch.devices.measured_peaks import (
    BEYOND_CACHES,
    BUS_PASSES,
    Exchange,
    Kernel,
    Operation,
    Stream,
)
from flopwatch.settings import Device
from flopwatch.worker.failure import classify


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    alone_s: float
    """For matmuls and memory, interleaved in one process."""
    exchanges_s: float
    longest_ns: float
    """A matmul that would take longer is not tried, nor any larger one."""
    caches_spanned: int
    """The largest arrays are so many times the last-level caches."""
    step: int
    """By which the sizes of arrays and messages grow."""
    load_s: float = 2.0
    """For which an accelerator is kept busy before what it keeps up counts."""
    sustained_s: float = 3.0
    """For which that is then measured, dtype by dtype."""


EFFORTS = {
    "full": Effort(alone_s=42, exchanges_s=8, longest_ns=0.4e9, caches_spanned=16, step=2),
    "quick": Effort(
        alone_s=7,
        exchanges_s=2,
        longest_ns=0.04e9,
        caches_spanned=8,
        step=4,
        load_s=1,
        sustained_s=1,
    ),
}

TAKEN = (*BUSY, STOLEN)
"""Kinds of time that a peak could have had."""
SMALLEST_BYTES = 2**19
"""A pass over less is over before torch has called it."""
MEMORY_SHARE = 0.25
"""Of the free memory, for the largest arrays."""
FLOAT_BYTES = 4

SMALLEST_MESSAGE_BYTES, LARGEST_MESSAGE_BYTES = 2**12, 2**26
"""From where latency is all there is to where it is nothing."""
LARGEST_OF_ACCELERATORS_BYTES = 2**30
"""Links of hundreds of GB/s are filled by less of it only in part."""


def measure(device: Device, dtypes: Sequence[str], effort: str) -> dict[str, Any]:
    """Matmuls and memory, and what only a process with torch knows of the machine."""
    chosen, cache_bytes = EFFORTS[effort], open_backend(device).find_cache_bytes()
    busy_s, started_s = read_background_s(TAKEN), time.monotonic()
    passes = begin_passes(device, cache_bytes, chosen)
    sweeps = {
        dtype: MatmulSweep(find_arithmetic(dtype, device), device, chosen.longest_ns)
        for dtype in dtypes
    }
    run_rounds(
        lambda: [
            *(sweep.extend() for sweep in sweeps.values()),
            *group_passes(passes, cache_bytes),
        ],
        chosen.alone_s,
    )
    if not is_host(device):
        for sweep in sweeps.values():
            sweep.sustain(chosen.load_s, chosen.sustained_s)
    cores_s = (psutil.cpu_count() or 1) * (time.monotonic() - started_s)
    return {
        "torch": environment.torch_build(),
        "matmuls": list_curves(sweeps),
        "streams": list_streams(passes),
        "cache_bytes": cache_bytes,
        "background_share": min(1.0, max(0.0, read_background_s(TAKEN) - busy_s) / cores_s),
    }


def _bind_read(torch: Any, arrays: Sequence[Any], count: int) -> Run:
    total = torch.empty((), device=arrays[0].device)
    return partial(torch.sum, arrays[0][:count], 0, out=total)


def _bind_copy(torch: Any, arrays: Sequence[Any], count: int) -> Run:
    source, target = (array[: count // 2] for array in arrays[:2])
    return partial(target.copy_, source)


def _bind_triad(torch: Any, arrays: Sequence[Any], count: int) -> Run:
    a, b, out = (array[: count // 3] for array in arrays)
    return partial(torch.add, a, b, alpha=3.0, out=out)


KERNELS: Mapping[Kernel, Callable[[Any, Sequence[Any], int], Run]] = {
    "read": _bind_read,
    "copy": _bind_copy,
    "triad": _bind_triad,
}


Passes = Mapping[tuple[Kernel, int], Trial]
"""Passes over memory, by kernel and by the bytes of all arrays."""


def begin_passes(device: Device, cache_bytes: int, effort: Effort) -> Passes:
    import torch

    backend = open_backend(device)
    free_bytes, largest_bytes = backend.count_free_bytes(), effort.caches_spanned * cache_bytes
    if free_bytes is not None:
        largest_bytes = min(largest_bytes, int(MEMORY_SHARE * free_bytes))
    numbers = torch.rand(largest_bytes // FLOAT_BYTES, device=device)
    # A pass that writes spreads over two arrays or three, so that each is smaller.
    arrays = [numbers, *(torch.ones_like(numbers[: len(numbers) // n]) for n in (2, 3))]
    passes = {
        (kernel, size_bytes): Trial(
            work=float(size_bytes),
            prepare=partial(bind, torch, arrays, size_bytes // FLOAT_BYTES),
            clock=backend.clock,
        )
        for kernel, bind in KERNELS.items()
        for size_bytes in list_sizes_bytes(SMALLEST_BYTES, largest_bytes, effort.step)
    }
    for trial in passes.values():
        trial.begin()
    return passes


def group_passes(passes: Passes, cache_bytes: int) -> list[list[Trial]]:
    """Of each kernel, those within the caches and those far beyond, each with a best of its own."""
    groups: dict[tuple[Kernel, bool], list[Trial]] = {}
    for (kernel, size_bytes), trial in passes.items():
        is_far = size_bytes >= BEYOND_CACHES * cache_bytes
        groups.setdefault((kernel, is_far), []).append(trial)
    return list(groups.values())


def list_streams(passes: Passes) -> list[Stream]:
    return [
        Stream(kernel=kernel, size_bytes=size_bytes, bytes_per_s=trial.rate_per_s)
        for (kernel, size_bytes), trial in passes.items()
    ]


def list_sizes_bytes(smallest: int, largest: int, step: int) -> list[int]:
    """From the largest down, since that one matters; the smallest first.

    >>> list_sizes_bytes(100, 1024, 2)
    [128, 256, 512, 1024]
    """
    sizes = [largest]
    while sizes[-1] // step >= smallest:
        sizes.append(sizes[-1] // step)
    return sizes[::-1]


def measure_collectives(device: Device, effort: str) -> list[Exchange]:
    """On all ranks at once. An operation that the backend does not have is left out."""
    from torch import distributed

    chosen = EFFORTS[effort]
    trials = _begin_growing(_make_collective_trials(device, chosen.step**2), chosen.longest_ns)
    groups = [[t for (o, _), t in trials.items() if o == operation] for operation in BUS_PASSES]
    run_rounds(lambda: groups, chosen.exchanges_s, partial(_find_longest, device))
    return [
        Exchange(
            operation=operation,
            ranks=distributed.get_world_size(),
            backend=str(distributed.get_backend()),
            size_bytes=size_bytes,
            time_ns=trial.best_ns,
        )
        for (operation, size_bytes), trial in trials.items()
    ]


Trials = dict[tuple[Operation, int], Trial]
"""Of collectives, by the bytes of the whole array."""


def _begin_growing(made: Trials, longest_ns: float) -> Trials:
    """Those that torch has, the smallest of an operation first. Messages that are larger than those
    of a CPU only as long as the next would not take too long: all ranks have the same times."""
    begun: Trials = {}
    for (operation, size_bytes), trial in made.items():
        smaller = [known for (other, _), known in begun.items() if other == operation]
        if size_bytes > LARGEST_MESSAGE_BYTES and smaller:
            expected_ns = size_bytes / smaller[-1].rate_per_s * 1e9
            if expected_ns > longest_ns:
                continue
        if _begins(trial):
            begun[operation, size_bytes] = trial
    return begun


def _find_largest_bytes(device: Device) -> int:
    """The same on all ranks."""
    if is_host(device):
        return LARGEST_MESSAGE_BYTES
    size_bytes, free_bytes = LARGEST_OF_ACCELERATORS_BYTES, open_backend(device).count_free_bytes()
    while free_bytes is not None and size_bytes > max(
        MEMORY_SHARE * free_bytes, SMALLEST_MESSAGE_BYTES
    ):
        size_bytes //= 2
    return int(-_find_longest(device, -size_bytes))


def _make_collective_trials(device: Device, step: int) -> Trials:
    import torch
    from torch import distributed

    ranks, largest_bytes = distributed.get_world_size(), _find_largest_bytes(device)
    largest = largest_bytes // FLOAT_BYTES // ranks
    # Sums of sums become infinite, which takes no longer.
    part, whole = (torch.randn(count, device=device) for count in (largest, largest * ranks))
    clock = open_backend(device).clock
    trials: Trials = {}
    for operation in BUS_PASSES:
        for size_bytes in list_sizes_bytes(SMALLEST_MESSAGE_BYTES, largest_bytes, step):
            count = size_bytes // FLOAT_BYTES // ranks
            trials[operation, FLOAT_BYTES * count * ranks] = Trial(
                work=FLOAT_BYTES * count * ranks,
                prepare=partial(_bind_collective, operation, whole[: count * ranks], part[:count]),
                clock=clock,
                settle=partial(_find_longest, device),
            )
    return trials


def _bind_collective(operation: Operation, whole: Any, part: Any) -> Run:
    import torch
    from torch import distributed

    if operation == "all-reduce":
        return partial(distributed.all_reduce, whole)
    if operation == "all-to-all":
        return partial(distributed.all_to_all_single, torch.empty_like(whole), whole)
    if operation == "send-receive":
        return partial(_pass_on, whole, torch.empty_like(whole))
    # Named anew in torch 2.13, where the older names warn.
    if operation == "all-gather":
        gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
        return partial(gather, whole, part)
    scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
    return partial(scatter, part, whole)


def _pass_on(sent: Any, received: Any) -> None:
    """To the next rank, and from the one before, in a ring."""
    from torch import distributed
    from torch.distributed import P2POp, batch_isend_irecv, irecv, isend

    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    passed = [
        P2POp(isend, sent, (rank + 1) % ranks),
        P2POp(irecv, received, (rank - 1) % ranks),
    ]
    for work in batch_isend_irecv(passed):
        work.wait()


def _begins(trial: Trial) -> bool:
    """False where torch does not have it, on all ranks."""
    try:
        trial.begin()
    except Exception as error:
        if classify(error) != "unsupported" and "does not support" not in str(error):
            raise
        return False
    return True


def _find_longest(device: Device, value: float) -> float:
    """Of all ranks' values the largest."""
    import torch
    from torch import distributed

    longest = torch.tensor(value, dtype=torch.float64, device=device)
    distributed.all_reduce(longest, distributed.ReduceOp.MAX)
    return longest.item()
