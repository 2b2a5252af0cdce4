"""What is particular to a device: its clock, its caches, and its warnings.

On a CPU, `evict` overwrites a buffer of twice the last-level cache, with as many threads as the
measurement uses, so that the private caches of their cores are emptied too. On a GPU it does the
same to the L2 cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flopwatch.devices.clock import Clock, CpuClock, CudaClock
from flopwatch.devices.tensor_memory import Memory, measure_memory
from flopwatch.records.record import PhaseMemory
from flopwatch.settings import Device

Untimed = Callable[[], object]
Phases = Mapping[str, Callable[..., Any]]

FALLBACK_CACHE_BYTES = 64 * 2**20  # larger than most, where it is not known

THROTTLE_REASONS = {
    0x04: "its power limit",
    0x08: "a hardware slowdown",
    0x20: "its temperature (software limit)",
    0x40: "its temperature (hardware limit)",
    0x80: "an external power brake",
}
"""NVML's clock event bits that mean "slower than it could be"; idle and user-set clocks do not."""


class Target(Protocol):
    """The device that a group is measured on."""

    clock: Clock

    def evict(self) -> None:
        """Empty the caches."""

    def look(self) -> None:
        """Take note of the device's state; called a few times a second while sampling."""

    def throttle_reasons(self) -> list[str]:
        """Why the device has lowered its clocks since this was made, such as "its power limit"."""

    def measure_memory(self, prepare: Untimed, phases: Phases) -> Memory | None:
        """What a run of these phases holds; None: unknown.

        `prepare` is called before a run and does not count.
        """


class CpuTarget:
    def __init__(self, cache_bytes: int | None = None) -> None:
        self.clock: Clock = CpuClock()
        self._buffer_bytes = 2 * (cache_bytes or FALLBACK_CACHE_BYTES)
        self._buffer: Any = None

    def evict(self) -> None:
        import torch

        if self._buffer is None:
            self._buffer = torch.zeros(self._buffer_bytes // 4, dtype=torch.float32)
        self._buffer.add_(1)

    def look(self) -> None:
        pass

    def throttle_reasons(self) -> list[str]:
        return []

    def measure_memory(self, prepare: Untimed, phases: Phases) -> Memory | None:
        return measure_memory(prepare, phases)


class CudaTarget:
    """`torch` and `read_throttle` are handed in, so that tests need no GPU."""

    def __init__(self, torch: Any, read_throttle: Callable[[], int | None]) -> None:
        self._torch = torch
        self._read_throttle = read_throttle
        self.clock: Clock = CudaClock(torch.cuda)
        self._buffer: Any = None
        self._seen = 0

    def evict(self) -> None:
        if self._buffer is None:
            properties = self._torch.cuda.get_device_properties("cuda")
            cache_bytes = getattr(properties, "L2_cache_size", 0) or FALLBACK_CACHE_BYTES
            self._buffer = self._torch.empty(2 * cache_bytes, dtype=self._torch.int8, device="cuda")
        self._buffer.zero_()

    def look(self) -> None:
        self._seen |= self._read_throttle() or 0

    def throttle_reasons(self) -> list[str]:
        return [text for bit, text in THROTTLE_REASONS.items() if self._seen & bit]

    def measure_memory(self, prepare: Untimed, phases: Phases) -> Memory | None:
        cuda = self._torch.cuda
        prepare()
        resident_bytes = int(cuda.memory_allocated())
        found = {}
        passed: tuple[Any, ...] = ()
        for name, phase in phases.items():
            cuda.reset_peak_memory_stats()
            passed = (phase(*passed),)
            found[name] = PhaseMemory(
                peak_bytes=max(0, int(cuda.max_memory_allocated()) - resident_bytes),
                end_bytes=max(0, int(cuda.memory_allocated()) - resident_bytes),
            )
        return Memory(resident_bytes=resident_bytes, phases=found)


COLLECTIVES: dict[Device, str] = {"cpu": "gloo", "cuda": "nccl"}
"""The backend of torch.distributed for each device."""


def select_gpu(number: int) -> None:
    """For a rank; where the process is shown only one GPU, that."""
    import torch

    torch.cuda.set_device(number if torch.cuda.device_count() > 1 else 0)


def limit_gpu_memory(share: float) -> None:
    """Do without the rest of the GPU's memory."""
    import torch

    torch.cuda.set_per_process_memory_fraction(share)


def synchronize(device: Device) -> None:
    """Wait until all work of the device is done; a CPU's is done when its calls return."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def find_device_in_use() -> Device:
    """CUDA if this process already uses it: then its calls return before their work is done."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"


def open_target(device: Device, cache_bytes: int | None = None) -> Target:
    if device == "cpu":
        return CpuTarget(cache_bytes)
    import torch

    return CudaTarget(torch, nvml_throttle_reader(torch.cuda.get_device_properties("cuda")))


def nvml_throttle_reader(properties: Any) -> Callable[[], int | None]:
    """Reads the clock event bits of a GPU; gives None where NVML is absent or does not know."""

    def read() -> int | None:
        try:
            import pynvml

            pynvml.nvmlInit()
            # By its UUID: NVML counts all devices, torch only the visible ones.
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
            return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        except Exception:
            return None

    return read
