"""Any accelerator that torch drives by `torch.accelerator` and `torch.Event`: XPU, MPS, and those
that a package of their own brings to torch.

Not all of them have everything. What torch cannot tell of a device is None, and where its events
have no times, the clock waits for the device at every mark instead, and its name says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from flopwatch.analysis.statistics import median
from flopwatch.devices.base import (
    FALLBACK_CACHE_BYTES,
    Clock,
    EventMarks,
    Memory,
    Phases,
    measure_allocations,
)
from flopwatch.errors import UsageError
from flopwatch.settings import Device

LEAST_RESOLUTION_NS = 500.0
"""Of events, whose resolution is not known: that of CUDA's."""
CACHE_NAMES = ("L2_cache_size", "last_level_cache_size")
"""What properties of devices call it, in bytes."""


class EventClock(EventMarks):
    """Events on the current stream of the current device: a call only queues work, so a mark is
    an event in the same queue, and phases are timed where they run."""

    def __init__(self, torch: Any, device: Device) -> None:
        self.name = f"{device} events"
        self._torch = torch
        self._device = device

    @cached_property
    def resolution_ns(self) -> float:
        marks = [self.mark() for _ in range(20)]
        return max(LEAST_RESOLUTION_NS, median(self.elapsed_ns(marks)))

    def mark(self) -> Any:
        event = self._torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def elapsed_ns(self, marks: Sequence[Any]) -> list[float]:
        self._torch.accelerator.synchronize()
        return self.list_between_ns(marks)

    def can_mark(self) -> bool:
        return True


class WaitingClock:
    """`perf_counter_ns`, once the device has done all that was queued: what overlaps on the device
    no longer does, and every mark costs a wait."""

    def __init__(self, torch: Any, device: Device) -> None:
        self.name = f"perf_counter, waiting for {device}"
        self._torch = torch

    @cached_property
    def resolution_ns(self) -> float:
        return median(self.elapsed_ns([self.mark() for _ in range(20)]))

    def mark(self) -> int:
        self._torch.accelerator.synchronize()
        return time.perf_counter_ns()

    def elapsed_ns(self, marks: Sequence[int]) -> list[float]:
        return [float(end - start) for start, end in zip(marks, marks[1:], strict=False)]


class AcceleratorBackend:
    def __init__(self, torch: Any, device: Device) -> None:
        self._torch = torch
        self._device = device

    @cached_property
    def clock(self) -> Clock:
        if has_timed_events(self._torch, self._device):
            return EventClock(self._torch, self._device)
        return WaitingClock(self._torch, self._device)

    @property
    def collectives(self) -> str:
        distributed = self._torch.distributed
        try:
            theirs = distributed.get_default_backend_for_device(self._device)
        except ValueError:
            raise UsageError(
                f"torch knows no collectives for {self._device}; install the package that brings "
                "them, or use one rank"
            ) from None
        # Losses and the like are averaged on the host.
        return f"cpu:gloo,{self._device}:{theirs}"

    @cached_property
    def _module(self) -> Any:
        return self._torch.get_device_module(self._device)

    @cached_property
    def _buffer(self) -> Any:
        size_bytes = 2 * self.find_cache_bytes()
        return self._torch.empty(size_bytes, dtype=self._torch.int8, device=self._device)

    def select(self, number: int) -> None:
        # A process that is shown only one device counts it as 0, whatever its rank.
        accelerator = self._torch.accelerator
        accelerator.set_device_index(number if accelerator.device_count() > 1 else 0)

    def limit_memory(self, share: float) -> None:
        limit = getattr(self._module, "set_per_process_memory_fraction", None)
        if limit is not None:
            limit(share)

    def synchronize(self) -> None:
        self._torch.accelerator.synchronize()

    def find_cache_bytes(self) -> int:
        found = 0
        with suppress(AttributeError, RuntimeError, TypeError):
            properties = self._module.get_device_properties()
            found = max(int(getattr(properties, name, 0)) for name in CACHE_NAMES)
        return found or FALLBACK_CACHE_BYTES

    def count_free_bytes(self) -> int | None:
        found = self._ask("get_memory_info") or self._ask("mem_get_info")
        return None if found is None else int(found[0])

    def evict(self) -> None:
        self._buffer.zero_()  # twice as large as the cache

    def look(self) -> None:
        """Clocks and temperatures have no common interface."""

    def throttle_reasons(self) -> list[str]:
        return []

    def measure_memory(self, prepare: Callable[[], object], phases: Phases) -> Memory | None:
        return measure_allocations(self._ask, prepare, phases)

    def _ask(self, name: str) -> Any | None:
        """What torch says of the current device's memory, or else the device's own module, which
        is older; None where neither knows."""
        for source in (self._torch.accelerator, self._module):
            with suppress(AttributeError, NotImplementedError, RuntimeError):
                return getattr(source, name)()
        return None


def has_timed_events(torch: Any, device: Device) -> bool:
    try:
        marks = [torch.Event(device, enable_timing=True) for _ in range(2)]
        for mark in marks:
            mark.record()
        torch.accelerator.synchronize()
        marks[0].elapsed_time(marks[1])
    except (NotImplementedError, RuntimeError):
        return False
    return True


def is_in_use(torch: Any, device: Device) -> bool:
    """Whether this process has used it, as far as that can be said without doing so."""
    module = torch.get_device_module(device)
    ask = getattr(module, "is_initialized", None)
    if ask is not None:
        return bool(ask())
    ask = getattr(module, "current_allocated_memory", None)  # as MPS, which has no such thing
    return ask is None or ask() > 0
