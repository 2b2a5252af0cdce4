"""The accelerator of these tests is another device: what is not waited for is not there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.accelerator.conftest import OnDevice
from tests.accelerator.device_build import NotBuilt, build_device

pytestmark = pytest.mark.xdist_group("accelerator")

ENDLESS_NS = 1e15
"""Of an operator that is never waited for: 11 days."""


def queue_operators(count: int) -> dict[str, Any]:
    import torch

    x = torch.ones(4, device="flop")
    marks = [torch.Event("flop", enable_timing=True) for _ in range(2)]
    marks[0].record()
    for _ in range(count):
        x = x + 1
    marks[1].record()
    was_done = marks[1].query()
    torch.accelerator.synchronize()
    return {
        "was done": was_done,
        "ms": marks[0].elapsed_time(marks[1]),
        "sum": x.sum().item(),
    }


def test_operators_are_queued_and_finish_later(on_device: OnDevice) -> None:
    found = on_device(queue_operators, 4, FLOP_OPERATOR_NS=100e6)
    assert not found["was done"]
    assert found["ms"] >= 400
    assert found["sum"] == 20


def read_times_at_once() -> str:
    import torch

    x = torch.ones(4, device="flop")
    marks = [torch.Event("flop", enable_timing=True) for _ in range(2)]
    marks[0].record()
    x.add_(1)
    marks[1].record()
    try:
        return str(marks[0].elapsed_time(marks[1]))
    except RuntimeError as error:
        return str(error)


def test_times_of_work_that_is_not_done_cannot_be_read(on_device: OnDevice) -> None:
    said = on_device(read_times_at_once, FLOP_OPERATOR_NS=ENDLESS_NS)
    assert "must be completed" in said


def copy_without_waiting() -> list[float]:
    import torch

    x = torch.ones(3, device="flop") * 7
    return x.to("cpu", non_blocking=True).tolist()


def copy_and_wait() -> list[list[float]]:
    import torch

    x = torch.ones(3, device="flop") * 7
    copied = x.to("cpu", non_blocking=True)
    torch.accelerator.synchronize()
    return [copied.tolist(), x.cpu().tolist()]


def test_a_copy_that_is_not_waited_for_is_poison(on_device: OnDevice) -> None:
    assert all(math.isnan(value) for value in on_device(copy_without_waiting))
    assert on_device(copy_and_wait) == [[7.0] * 3] * 2


def use_two_streams() -> dict[str, bool]:
    import torch

    x = torch.ones(4, device="flop")
    side, other = torch.Stream("flop"), torch.Stream("flop")
    with side:
        x + 1
    before = other.query()
    other.wait_stream(side)
    return {
        "side": side.query(),
        "current": torch.accelerator.current_stream().query(),
        "other before": before,
        "other after": other.query(),
    }


def test_streams_wait_only_where_they_are_told_to(on_device: OnDevice) -> None:
    found = on_device(use_two_streams, FLOP_OPERATOR_NS=ENDLESS_NS)
    assert found == {"side": False, "current": False, "other before": True, "other after": False}


def use_two_devices() -> dict[str, Any]:
    import torch

    torch.accelerator.set_device_index(1)
    x = torch.zeros(1000, device="flop")
    y = torch.zeros(1000, device="flop:0")
    return {
        "count": torch.accelerator.device_count(),
        "devices": [str(x.device), str(y.device), str((y.to("flop:1") + x).device)],
        "bytes": [torch.accelerator.memory_allocated(index) for index in (0, 1)],
    }


def test_there_are_two_devices_with_memory_of_their_own(on_device: OnDevice) -> None:
    found = on_device(use_two_devices)
    assert found == {"count": 2, "devices": ["flop:1", "flop:0", "flop:1"], "bytes": [4096, 4096]}


def fill_memory() -> dict[str, Any]:
    import torch

    held: list[Any] = [torch.zeros(2**20, dtype=torch.uint8, device="flop") for _ in range(3)]
    try:
        held.append(torch.zeros(2**20, dtype=torch.uint8, device="flop"))
    except torch.OutOfMemoryError as error:
        message = str(error)
    used, free = torch.accelerator.memory_allocated(), torch.accelerator.get_memory_info()[0]
    held.clear()
    return {
        "message": message,
        "used": used,
        "free": free,
        "freed": torch.accelerator.memory_allocated(),
        "peak": torch.accelerator.max_memory_allocated(),
    }


def test_memory_runs_out_at_its_limit(on_device: OnDevice) -> None:
    found = on_device(fill_memory, FLOP_MEMORY_BYTES=7 * 2**19)
    assert "flop out of memory. Tried to allocate 1048576 bytes" in found.pop("message")
    assert found == {"used": 3 * 2**20, "free": 2**19, "freed": 0, "peak": 3 * 2**20}


def train(device: str) -> list[float]:
    """Attention, bf16 autocast, activation checkpointing, and a fused optimizer."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    head = torch.nn.Linear(16, 11)
    layer, head = layer.to(device), head.to(device)
    optimizer = torch.optim.AdamW([*layer.parameters(), *head.parameters()], fused=True)
    x, labels = torch.randn(3, 8, 16).to(device), torch.randint(11, (24,)).to(device)
    losses = []
    for _ in range(3):
        with torch.autocast(device, dtype=torch.bfloat16):
            hidden = checkpoint(layer, x, use_reentrant=False)
            loss = cross_entropy(head(hidden).flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_model_trains_as_on_the_cpu(on_device: OnDevice) -> None:
    assert on_device(train, "flop") == pytest.approx(on_device(train, "cpu"), rel=2e-3)


def profile_matmul() -> list[dict[str, Any]]:
    import torch
    from torch.autograd.profiler import profile

    x = torch.ones(64, 64, device="flop")
    with profile(use_kineto=True, use_device="flop") as profiler:
        x @ x
        torch.accelerator.synchronize()
    return [
        {"name": event.name, "kernels": [[k.name, k.duration] for k in event.kernels]}
        for event in profiler.function_events
        if event.name == "aten::mm"
    ]


def test_the_profiler_has_rows_of_the_device_by_operator(on_device: OnDevice) -> None:
    (found,) = [row for row in on_device(profile_matmul, FLOP_OPERATOR_NS=3e6) if row["kernels"]]
    ((name, duration_us),) = found["kernels"]
    assert name == "aten::mm"
    assert 3000 <= duration_us < 3100


def run_into_fault() -> list[str]:
    import torch

    x = torch.ones(4, device="flop")
    said = []
    torch.nn.functional.gelu(x)
    for call in (torch.accelerator.synchronize, lambda: x + 1, lambda: torch.relu(x)):
        try:
            call()
            said.append("fine")
        except torch.AcceleratorError as error:
            said.append(str(error).split(";")[0])
    return said


def test_a_fault_of_a_kernel_breaks_the_device_for_the_process(on_device: OnDevice) -> None:
    said = on_device(run_into_fault, FLOP_FAULT="aten::gelu")
    assert said == ["flop error: an illegal memory access was encountered"] * 3


def run_throttled() -> list[float]:
    import torch

    x = torch.ones(4, device="flop")
    marks = []
    for _ in range(3):
        marks.append(torch.Event("flop", enable_timing=True))
        marks[-1].record()
        x.add_(1)
    torch.accelerator.synchronize()
    return [first.elapsed_time(second) for first, second in zip(marks, marks[1:], strict=False)]


def test_a_throttled_clock_makes_work_take_longer(on_device: OnDevice) -> None:
    first, second = on_device(
        run_throttled,
        FLOP_OPERATOR_NS=50e6,
        FLOP_THROTTLE_AFTER_NS=60e6,
        FLOP_THROTTLED_CLOCK=0.5,
    )
    assert first >= 50
    assert second >= 100


def test_without_a_compiler_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotBuilt, match="no-such-compiler"):
        build_device()
