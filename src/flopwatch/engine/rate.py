"""How fast matrix products are here: a probe of a moment, for estimates and for nothing else."""

from __future__ import annotations

import math

from flopwatch.engine.clock import Clock
from flopwatch.settings import Device

SIZES: dict[Device, int] = {"cpu": 512, "cuda": 4096}
"""Large enough for a product's usual rate: a GPU is done with a small one before the next is
launched. And where a CPU emulates short types, over in a second."""
ENOUGH_NS = 0.3e9


def measure_rate(dtype: str, device: Device, clock: Clock) -> float | None:
    """FLOP/s of a product in that dtype; None where torch has none."""
    import torch

    size = SIZES[device]
    try:
        a = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
        torch.mm(a, a)  # the first one pays for what all others find done
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
