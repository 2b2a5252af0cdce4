"""What is particular to a device, behind one protocol: `Backend`.

`cpu` and `cuda` implement it, and `accelerator` for all others that torch has; to add a kind of
device that needs more than torch's common interface, add a module next to them and a line to
`open_backend`. Opening a backend touches no device, and importing this module does not import
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from flopwatch.devices.kinds import HOST
from flopwatch.records.record import PhaseMemory
from flopwatch.settings import Device

Phases = Mapping[str, Callable[..., Any]]
"""By name, in order; each is called with what the one before it returned."""

FALLBACK_CACHE_BYTES = 64 * 2**20  # larger than most, where it is not known


class Clock(Protocol):
    """Marks in time, and the nanoseconds between them.

    A sample's phases are timed by one clock, as ``mark, phase, mark, phase, mark``.
    """

    name: str

    @property
    def resolution_ns(self) -> float:
        """The shortest time that can be measured, a mark's own cost included."""

    def mark(self) -> Any: ...

    def elapsed_ns(self, marks: Sequence[Any]) -> list[float]:
        """The times between successive marks, once all of them have passed."""


@runtime_checkable
class PolledClock(Protocol):
    """A clock whose marks are in the device's queue, and which can be read without waiting."""

    name: str

    def can_mark(self) -> bool:
        """Not while a graph is recorded: marks would become a part of it."""

    def mark(self) -> Any: ...

    def has_passed(self, mark: Any) -> bool:
        """Whether the device has come so far."""

    def between_ns(self, start: Any, end: Any) -> float:
        """Of two marks that have passed."""


class EventMarks:
    """Of a clock whose marks are torch's events: how they are read."""

    def has_passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def between_ns(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1e6  # milliseconds

    def list_between_ns(self, marks: Sequence[Any]) -> list[float]:
        return [self.between_ns(start, end) for start, end in pairwise(marks)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    resident_bytes: int
    """Tensors that were there before the run."""
    phases: Mapping[str, PhaseMemory]

    @property
    def peak_bytes(self) -> int:
        """Of the run, beyond what was there before it."""
        return max((phase.peak_bytes for phase in self.phases.values()), default=0)


class Backend(Protocol):
    """The device that a process measures on."""

    @property
    def clock(self) -> Clock: ...

    @property
    def collectives(self) -> str:
        """Its backend of torch.distributed, as `init_process_group` takes it."""

    def select(self, number: int) -> None:
        """Use this one of the node's devices; before anything else touches one."""

    def limit_memory(self, share: float) -> None:
        """Do without the rest of the device's own memory."""

    def synchronize(self) -> None:
        """Wait until all work of the device is done."""

    def find_cache_bytes(self) -> int:
        """All last-level caches, or a guess where they are not known."""

    def count_free_bytes(self) -> int | None:
        """Memory that this process can still take; None: unknown."""

    def evict(self) -> None:
        """Empty the caches."""

    def look(self) -> None:
        """Take note of the device's state; called a few times a second while sampling."""

    def throttle_reasons(self) -> list[str]:
        """Why the device has lowered its clocks since this was made, such as "its power limit"."""

    def measure_memory(self, prepare: Callable[[], object], phases: Phases) -> Memory | None:
        """What a run of these phases holds; None: unknown.

        `prepare` is called before a run and does not count.
        """


@runtime_checkable
class GraphBackend(Protocol):
    """A backend of a device that can record its work as a graph, which one call then launches."""

    def capture(self, prepare: Callable[[], object], phases: Phases) -> Phases:
        """The same phases, each as a graph. They must always work on the same tensors; `prepare` is
        called before a run, as it is later."""


def measure_allocations(
    ask: Callable[[str], Any], prepare: Callable[[], object], phases: Phases
) -> Memory | None:
    """What a device's own allocator says of a run; `ask` calls one of its functions by name, as
    torch's modules have them, and gives None where there is none."""
    prepare()
    resident_bytes = ask("memory_allocated")
    if resident_bytes is None:
        return None
    found = {}
    passed: tuple[Any, ...] = ()
    for name, phase in phases.items():
        ask("reset_peak_memory_stats")
        passed = (phase(*passed),)
        peak_bytes, end_bytes = ask("max_memory_allocated"), ask("memory_allocated")
        if peak_bytes is None or end_bytes is None:
            return None
        found[name] = PhaseMemory(
            peak_bytes=max(0, int(peak_bytes) - int(resident_bytes)),
            end_bytes=max(0, int(end_bytes) - int(resident_bytes)),
        )
    return Memory(resident_bytes=int(resident_bytes), phases=found)


def open_backend(device: Device, cache_bytes: int | None = None) -> Backend:
    """`cache_bytes` is the size of a CPU's last-level caches, where the caller knows it."""
    if device == HOST:
        from flopwatch.devices.cpu import CpuBackend

        return CpuBackend(cache_bytes)
    import torch

    if device == "cuda":
        from flopwatch.devices.cuda import CudaBackend

        return CudaBackend(torch)
    from flopwatch.devices.accelerator import AcceleratorBackend

    return AcceleratorBackend(torch, device)


def find_device_in_use() -> Device:
    """The accelerator if this process already uses it: then its calls return before their work is
    done."""
    torch = sys.modules.get("torch")
    if torch is None:
        return HOST
    if torch.cuda.is_initialized():
        return "cuda"
    if not hasattr(torch, "accelerator"):  # before 2.6
        return HOST
    from flopwatch.devices.accelerator import is_in_use

    found = torch.accelerator.current_accelerator()
    return found.type if found is not None and is_in_use(torch, found.type) else HOST
