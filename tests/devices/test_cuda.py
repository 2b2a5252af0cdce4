"""The CUDA path, on a fake device that runs its queue on a fake clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flopwatch.devices.base import Memory
from flopwatch.devices.cuda import CudaBackend, CudaClock
from flopwatch.records.record import PhaseMemory
from flopwatch.settings import Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.rank_roles import SingleProcess
from flopwatch.worker.sampling import Sampler
from tests.devices.test_gpu_state import FakeAmdSmi, FakeNvml, make_torch


class FakeCuda:
    """A device with a queue: work and events are queued, and happen at the next synchronize."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.device_ns = 0.0
        self.synchronizations = 0
        self.resident_bytes = self.peak_bytes = 0
        outer = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ns: float | None = None

            def record(self) -> None:
                outer.queue.append(self)

            def elapsed_time(self, other: Event) -> float:
                assert self.at_ns is not None, "read before it was synchronised"
                assert other.at_ns is not None
                return (other.at_ns - self.at_ns) / 1e6

        self.Event = Event

    def launch(self, ns: float) -> None:
        self.queue.append(ns)

    def synchronize(self) -> None:
        self.synchronizations += 1
        for item in self.queue:
            if isinstance(item, float):
                self.device_ns += item
            else:
                item.at_ns = self.device_ns
        self.queue.clear()

    def get_device_properties(self, device: str) -> Any:
        return SimpleNamespace(L2_cache_size=1000)

    def allocate(self, size: int) -> None:
        self.resident_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)

    def memory_allocated(self) -> int:
        return self.resident_bytes

    def max_memory_allocated(self) -> int:
        return self.peak_bytes

    def reset_peak_memory_stats(self) -> None:
        self.peak_bytes = self.resident_bytes


def fake_torch(cuda: FakeCuda) -> Any:
    flushes: list[int] = []

    def empty(size: int, **options: Any) -> Any:
        return SimpleNamespace(zero_=lambda: flushes.append(size))

    return SimpleNamespace(cuda=cuda, empty=empty, int8="int8", flushes=flushes)


def test_phases_are_timed_on_the_device_with_one_synchronisation() -> None:
    cuda = FakeCuda()
    clock = CudaClock(cuda)
    marks = [clock.mark()]
    cuda.launch(3000.0)
    marks.append(clock.mark())
    cuda.launch(5000.0)
    marks.append(clock.mark())
    assert clock.elapsed_ns(marks) == pytest.approx([3000, 5000])
    assert cuda.synchronizations == 1


def test_sampling_on_the_device_gives_its_times_not_the_callers() -> None:
    cuda = FakeCuda()
    target = CudaBackend(fake_torch(cuda))
    workload = Workload(
        phases={"forward": lambda: cuda.launch(30e6), "backward": lambda _: cuda.launch(60e6)}
    )
    sampler = Sampler(
        {"a": workload},
        baseline="a",
        settings=Settings(device="cuda"),
        target=SingleProcess(target.clock, target.evict),
        now_s=lambda: cuda.device_ns / 1e9,
    )
    assert sampler.run().stop_reason == "precise"
    assert sampler.series[0].phase_ns[-1] == pytest.approx([30e6, 60e6])


def test_l2_is_flushed_with_twice_its_size() -> None:
    torch = fake_torch(FakeCuda())
    target = CudaBackend(torch)
    target.evict()
    target.evict()
    assert torch.flushes == [2000, 2000]


def test_throttling_is_noted_by_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0x1, 0x4, 0x40, 0x4])  # idle; power cap; hardware thermal; power cap
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=lambda handle: next(readings))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    target = CudaBackend(make_torch())
    for _ in range(4):
        target.look()
    assert target.throttle_reasons() == [
        "its power limit",
        "its temperature (hardware limit)",
    ]


def test_throttling_of_an_amd_gpu_is_noted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = FakeAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    target = CudaBackend(make_torch(hip="7.0"))
    target.look()
    assert target.throttle_reasons() == []
    smi.metrics["ppt_residency_acc"] += 1
    target.look()
    assert target.throttle_reasons() == ["its power limit"]


@pytest.mark.parametrize(
    "nvml",
    [
        FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x1),  # idle
        FakeNvml("nvmlDeviceGetCurrentClocksEventReasons"),
        None,  # not installed
    ],
)
def test_what_is_unknown_is_no_throttling(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    target = CudaBackend(make_torch())
    target.look()
    assert target.throttle_reasons() == []


def test_memory_of_a_gpu_is_its_allocators_beyond_what_was_there() -> None:
    cuda = FakeCuda()
    target = CudaBackend(fake_torch(cuda))
    cuda.allocate(1000)  # weights
    cuda.allocate(500)
    cuda.allocate(-500)

    def allocate(*sizes: int) -> Callable[..., None]:
        return lambda *_: [cuda.allocate(size) for size in sizes] and None

    memory = target.measure_memory(
        lambda: cuda.allocate(7),
        {"forward": allocate(30, 50, -50), "backward": allocate(10, -30)},
    )
    assert memory == Memory(
        resident_bytes=1007,
        phases={
            "forward": PhaseMemory(peak_bytes=80, end_bytes=30),
            "backward": PhaseMemory(peak_bytes=40, end_bytes=10),
        },
    )
    assert memory.peak_bytes == 80
