"""How fast matrix products are here: a probe of a moment, for estimates and for nothing else."""

from __future__ import annotations

from flopwatch.engine.clock import Clock
from flopwatch.settings import Device

SIZE = 512
"""Large enough for a product's usual rate, and where short types are emulated, over in a second."""
ENOUGH_NS = 0.3e9


def measure_rate(dtype: str, device: Device, clock: Clock) -> float | None:
    """FLOP/s of a product in that dtype; None where torch has none."""
    import torch

    try:
        a = torch.ones(SIZE, SIZE, dtype=getattr(torch, dtype), device=device)
        torch.mm(a, a)  # the first one pays for what all others find done
        times_ns: list[float] = []
        while sum(times_ns) < ENOUGH_NS:
            start = clock.mark()
            torch.mm(a, a)
            times_ns += clock.elapsed_ns([start, clock.mark()])
    except (AttributeError, MemoryError, RuntimeError, TypeError):
        return None
    # The fastest: what disturbs a moment says nothing about the hours to come.
    return 2 * SIZE**3 / min(times_ns) * 1e9
