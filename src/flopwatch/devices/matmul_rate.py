"""How fast matmuls are here: a probe of a moment, for estimates and for nothing else."""

from __future__ import annotations

import math
from functools import cache

from flopwatch.devices.backends import open_target
from flopwatch.devices.clock import Clock
from flopwatch.settings import Device

SIZES: dict[Device, int] = {"cpu": 512, "cuda": 4096}
"""Large enough for a matmul's usual rate: a GPU is done with a small one before the next is
launched. And where a CPU emulates short types, over in a second."""
ENOUGH_NS = 0.3e9


EMULATED = 2.0
"""Matmuls that take this many times as long as float32's do not use what the hardware is for."""


@cache
def describe_emulation(dtype: str, device: Device) -> str | None:
    """A sentence where matmuls in that dtype are slower than in float32; otherwise None."""
    if dtype == "float32":
        return None
    clock = open_target(device).clock
    plain, short = (measure_rate(each, device, clock) for each in ("float32", dtype))
    if plain is None or short is None or plain / short < EMULATED:
        return None
    return (
        f"{dtype} is emulated here: a plain matmul takes {plain / short:.0f} times as long as in "
        "float32"
    )


def measure_rate(dtype: str, device: Device, clock: Clock) -> float | None:
    """FLOP/s of a matmul in that dtype; None where torch has none."""
    import torch

    size = SIZES[device]
    try:
        a = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
        torch.mm(a, a)  # the first one pays for one-time costs
        total_ns, shortest_ns = 0.0, math.inf
        while total_ns < ENOUGH_NS:
            start = clock.mark()
            torch.mm(a, a)
            (elapsed_ns,) = clock.elapsed_ns([start, clock.mark()])
            total_ns += elapsed_ns
            shortest_ns = min(shortest_ns, elapsed_ns)
    except (AttributeError, MemoryError, RuntimeError, TypeError):
        return None
    # The fastest: what disturbs a moment says nothing about the hours to come.
    return 2 * size**3 / shortest_ns * 1e9
