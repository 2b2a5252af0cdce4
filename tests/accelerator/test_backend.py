"""The backend for any accelerator, on one whose work is queued and finishes later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flopwatch.devices.accelerator import AcceleratorBackend, is_in_use
from flopwatch.devices.base import find_device_in_use, open_backend
from flopwatch.errors import UsageError
from tests.accelerator.conftest import OnDevice

pytestmark = pytest.mark.xdist_group("accelerator")


def time_phases() -> dict[str, Any]:
    """The first has two operators, the second one."""
    import torch

    backend = open_backend("flop")
    x = torch.ones(4, device="flop")
    backend.synchronize()
    clock = backend.clock
    marks = [clock.mark()]
    x.add_(1).mul_(2)
    marks.append(clock.mark())
    x.add_(1)
    marks.append(clock.mark())
    return {
        "clock": clock.name,
        "ms": [ns / 1e6 for ns in clock.elapsed_ns(marks)],
        "resolution": clock.resolution_ns,
    }


def test_events_time_phases_where_they_run(on_device: OnDevice) -> None:
    found = on_device(time_phases, FLOP_OPERATOR_NS=100e6)
    assert found["clock"] == "flop events"
    first, second = found["ms"]
    assert first >= 200
    assert second >= 100
    assert found["resolution"] >= 500


def test_a_device_without_timed_events_is_waited_for(on_device: OnDevice) -> None:
    found = on_device(time_phases, FLOP_OPERATOR_NS=50e6, FLOP_TIMED_EVENTS=0)
    assert found["clock"] == "perf_counter, waiting for flop"
    first, second = found["ms"]
    assert first >= 100
    assert second >= 50


def read_states() -> Any:
    import torch

    from flopwatch.devices.environment import torch_build

    held = torch.zeros(2**20, dtype=torch.uint8, device="flop:1")
    return held.numel(), torch_build()["gpu"]["states"]


def test_the_environment_has_what_is_free_on_each_device(on_device: OnDevice) -> None:
    held, (first, second) = on_device(read_states, FLOP_MEMORY_BYTES=2**24)
    assert first["free_bytes"] == first["total_bytes"] == 2**24
    assert second["total_bytes"] - second["free_bytes"] >= held


def measure_memory() -> dict[str, Any]:
    import torch

    backend = open_backend("flop")
    kept = torch.zeros(2**20, dtype=torch.uint8, device="flop")

    def make_two() -> Any:
        torch.zeros(2**20, dtype=torch.uint8, device="flop")
        return torch.zeros(2**20, dtype=torch.uint8, device="flop")

    def make_more(one: Any) -> Any:
        return [one, torch.zeros(3 * 2**20, dtype=torch.uint8, device="flop")]

    found = backend.measure_memory(lambda: None, {"first": make_two, "second": make_more})
    assert found is not None
    assert kept is not None
    return {
        "resident": found.resident_bytes,
        "peak": found.peak_bytes,
        "phases": {n: [p.peak_bytes, p.end_bytes] for n, p in found.phases.items()},
        "free": backend.count_free_bytes(),
    }


def test_memory_by_phase(on_device: OnDevice) -> None:
    megabyte = 2**20
    assert on_device(measure_memory, FLOP_MEMORY_BYTES=16 * megabyte) == {
        "resident": megabyte,
        "peak": 4 * megabyte,
        "phases": {"first": [megabyte, megabyte], "second": [4 * megabyte, 4 * megabyte]},
        "free": 15 * megabyte,
    }


def find_in_use() -> list[str]:
    import torch

    before = find_device_in_use()
    torch.zeros(1, device="flop")
    return [before, find_device_in_use()]


def test_the_device_in_use_is_found_without_using_it(on_device: OnDevice) -> None:
    assert on_device(find_in_use) == ["cpu", "flop"]


def select(number: int) -> list[Any]:
    import torch

    backend = open_backend("flop")
    backend.select(number)
    backend.evict()
    return [str(torch.ones(1, device="flop").device), backend.collectives]


def test_a_rank_has_the_device_of_its_number(on_device: OnDevice) -> None:
    found = [on_device(select, number) for number in (0, 1)]
    assert found == [[f"flop:{number}", "cpu:gloo,flop:floplink"] for number in (0, 1)]


class BareModule:
    """As torch's module of a device that has only what it must have."""

    @staticmethod
    def current_allocated_memory() -> int:
        return 0


def make_bare_torch() -> Any:
    def refuse(device: str) -> str:
        raise ValueError(f"Default backend not registered for device : {device}")

    def fail() -> Any:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    return SimpleNamespace(
        get_device_module=lambda device: BareModule,
        accelerator=SimpleNamespace(memory_allocated=fail, get_memory_info=fail),
        distributed=SimpleNamespace(get_default_backend_for_device=refuse),
    )


def test_what_torch_does_not_know_is_unknown() -> None:
    torch = make_bare_torch()
    backend = AcceleratorBackend(torch, "mps")
    assert backend.count_free_bytes() is None
    assert backend.measure_memory(lambda: None, {"call": lambda: None}) is None
    assert backend.find_cache_bytes() > 0
    backend.limit_memory(0.5)  # it cannot, and says nothing
    assert not is_in_use(torch, "mps")
    with pytest.raises(UsageError, match="no collectives for mps; install"):
        _ = backend.collectives
