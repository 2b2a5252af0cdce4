"""Times beside those of torch.utils.benchmark, which synchronises around many calls."""

from __future__ import annotations

import pytest
import torch
from torch.utils.benchmark import Timer

import flopwatch

pytestmark = pytest.mark.gpu


def time_by_torch(x: torch.Tensor, weight: torch.Tensor) -> float:
    """In nanoseconds."""
    timer = Timer("torch.mm(x, weight)", globals={"torch": torch, "x": x, "weight": weight})
    measured = timer.blocked_autorange(min_run_time=2.0)
    return float(measured.median) * 1e9


@pytest.mark.parametrize("size", [4096, 8192])
def test_a_large_matmul_takes_as_long_by_either_clock(device: str, size: int) -> None:
    x, weight = torch.randn(2, size, size, device=device, dtype=torch.bfloat16).unbind()
    measured = flopwatch.measure(lambda: torch.mm(x, weight), device=device, progress=False)
    expected_ns = time_by_torch(x, weight)
    # Two clocks of one thing. A clock that does not wait for the device is off by a factor of ten.
    assert measured.time_ns.value == pytest.approx(expected_ns, rel=0.2)


def test_work_that_is_only_queued_counts(device: str) -> None:
    """Ten matmuls take ten times as long as one: enqueueing them does not."""
    x, weight = torch.randn(2, 8192, 8192, device=device, dtype=torch.bfloat16).unbind()

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(x, weight)

    found = flopwatch.compare(
        {"ten": lambda: multiply(10), "one": lambda: multiply(1)}, device=device, progress=False
    )
    assert found.speedups["one"].value == pytest.approx(10, rel=0.25)


def test_phases_are_timed_where_they_run(device: str) -> None:
    layer = torch.nn.Linear(4096, 4096, device=device, dtype=torch.bfloat16)
    x = torch.randn(8192, 4096, device=device, dtype=torch.bfloat16, requires_grad=True)
    found = flopwatch.measure(lambda: layer(x), backward=True, device=device, progress=False)
    forward, backward = (found.phases_ns[name].value for name in ("forward", "backward"))
    assert 1.2 < backward / forward < 4  # two matmuls to one
