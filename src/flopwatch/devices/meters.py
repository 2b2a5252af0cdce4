"""What can be read of a device while it works, without disturbing it: energy, power, memory,
throttling, and how often its allocator had to start again.

Energy of NVIDIA's and AMD's GPUs comes from their drivers, that of CPUs from RAPL, which Linux
shows to root only unless told otherwise. What is not known is None, and nothing here raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from flopwatch.devices import system_files
from flopwatch.devices.gpu_state import Reader, open_reader
from flopwatch.devices.kinds import is_host
from flopwatch.settings import Device

RAPL = "sys/class/powercap"
THROTTLES = f"{system_files.CPUS}/cpu0/thermal_throttle/package_throttle_count"
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
RETRIES = "num_alloc_retries"
HELD, PEAK = "allocated_bytes.all.current", "allocated_bytes.all.peak"


@dataclass(frozen=True, kw_only=True, slots=True)
class Meters:
    """At one moment."""

    energy_j: float | None = None
    """Since some moment in the past."""
    power_w: float | None = None
    memory_bytes: int | None = None
    """Held by tensors; on a CPU by the process."""
    peak_memory_bytes: int | None = None
    allocator_retries: int | None = None
    """So far: each time it freed what it kept and asked the device again."""
    throttle_reasons: list[str] = field(default_factory=list)
    """Since the reading before."""


class DeviceMeters(Protocol):
    def read(self) -> Meters: ...

    def read_memory_bytes(self) -> int | None:
        """Only that, which is cheap."""


def open_meters(device: Device) -> DeviceMeters:
    """Of the device that this process uses."""
    return HostMeters() if is_host(device) else AcceleratorMeters(device)


class HostMeters:
    def __init__(self, root: Path = system_files.ROOT) -> None:
        self._root = root
        self._process = psutil.Process()
        self._domains = {
            folder.name: self._read_domain(folder.name, "max_energy_range_uj")
            for folder in sorted((root / RAPL).glob("intel-rapl:*"))
            if folder.name.count(":") == 1
            and self._read_domain(folder.name, "energy_uj") is not None
        }
        """Packages, with the count at which each starts again at 0."""
        self._counted_uj: dict[str, float] = {}
        self._energy_uj = 0.0
        self._throttles = self._read_throttles()

    def read(self) -> Meters:
        throttles, before = self._read_throttles(), self._throttles
        self._throttles = throttles
        is_throttled = throttles is not None and before is not None and throttles > before
        memory_bytes, peak_bytes = self.read_memory_bytes(), None
        with suppress(ImportError):
            import resource  # not on Windows

            usage = resource.getrusage(resource.RUSAGE_SELF)
            peak_bytes = max(usage.ru_maxrss * MAXRSS_BYTES, memory_bytes or 0)
        return Meters(
            energy_j=self._read_energy_j(),
            memory_bytes=memory_bytes,
            peak_memory_bytes=peak_bytes,
            throttle_reasons=["its temperature"] if is_throttled else [],
        )

    def read_memory_bytes(self) -> int | None:
        with suppress(psutil.Error, OSError):
            return int(self._process.memory_info().rss)
        return None

    def _read_energy_j(self) -> float | None:
        if not self._domains:
            return None
        for name, range_uj in self._domains.items():
            now_uj = self._read_domain(name, "energy_uj")
            if now_uj is None:
                return None
            before_uj = self._counted_uj.get(name, now_uj)
            self._energy_uj += now_uj - before_uj
            if now_uj < before_uj:
                self._energy_uj += range_uj or 0.0
            self._counted_uj[name] = now_uj
        return self._energy_uj / 1e6

    def _read_domain(self, name: str, what: str) -> int | None:
        return system_files.read_number(f"{RAPL}/{name}/{what}", self._root)

    def _read_throttles(self) -> float | None:
        return system_files.read_number(THROTTLES, self._root)


class AcceleratorMeters:
    """Of the current device of the thread that makes this; any thread may read it."""

    def __init__(self, device: Device) -> None:
        import torch

        self._statistics = _find_statistics(torch, device)
        self._reader: Reader | None = open_reader(torch) if device == "cuda" else None

    def read(self) -> Meters:
        found, reader = self._read_statistics(), self._reader
        return Meters(
            energy_j=None if reader is None else reader.read_energy_j(),
            power_w=None if reader is None else reader.read_power_w(),
            memory_bytes=_as_count(found.get(HELD)),
            peak_memory_bytes=_as_count(found.get(PEAK)),
            allocator_retries=_as_count(found.get(RETRIES)),
            throttle_reasons=(None if reader is None else reader.read_throttle_reasons()) or [],
        )

    def read_memory_bytes(self) -> int | None:
        return _as_count(self._read_statistics().get(HELD))

    def _read_statistics(self) -> Mapping[str, Any]:
        with suppress(Exception):
            return self._statistics()
        return {}


def _find_statistics(torch: Any, device: Device) -> Callable[[], Mapping[str, Any]]:
    """What the allocator of the device counts, by torch's names."""
    for source in (torch.get_device_module(device), getattr(torch, "accelerator", None)):
        ask = getattr(source, "memory_stats", None)
        if ask is not None:
            number = torch.accelerator.current_device_index()
            return lambda: ask(number)
    return dict


def _as_count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
