"""NVIDIA GPUs, and AMD's under the same name in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from flopwatch.devices.base import FALLBACK_CACHE_BYTES, Clock, Memory, Phases
from flopwatch.devices.gpu_state import Reader, open_reader
from flopwatch.records.record import PhaseMemory


class CudaClock:
    """CUDA events on the current stream of the current device.

    A call only queues work, so a mark is an event in the same queue: phases are timed where they
    run, with no synchronisation between them to distort them. `cuda` is ``torch.cuda``, or
    something like it in a test.
    """

    name = "cuda events"
    resolution_ns = 500.0  # documented resolution of cudaEventElapsedTime

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ns(self, marks: Sequence[Any]) -> list[float]:
        self._cuda.synchronize()
        return [
            start.elapsed_time(end) * 1e6  # milliseconds
            for start, end in zip(marks, marks[1:], strict=False)
        ]


class CudaBackend:
    """`torch` is handed in, so that tests need no GPU."""

    collectives = "nccl"

    def __init__(self, torch: Any) -> None:
        self.clock: Clock = CudaClock(torch.cuda)
        self._torch = torch
        self._throttle_reasons: dict[str, None] = {}

    @cached_property
    def _properties(self) -> Any:
        return self._torch.cuda.get_device_properties("cuda")

    @cached_property
    def _state(self) -> Reader | None:
        return open_reader(self._torch)

    @cached_property
    def _buffer(self) -> Any:
        size_bytes = 2 * self.find_cache_bytes()
        return self._torch.empty(size_bytes, dtype=self._torch.int8, device="cuda")

    def select(self, number: int) -> None:
        # A process that is shown only one GPU counts it as 0, whatever its rank.
        self._torch.cuda.set_device(number if self._torch.cuda.device_count() > 1 else 0)

    def limit_memory(self, share: float) -> None:
        self._torch.cuda.set_per_process_memory_fraction(share)

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def find_cache_bytes(self) -> int:
        return getattr(self._properties, "L2_cache_size", 0) or FALLBACK_CACHE_BYTES

    def count_free_bytes(self) -> int:
        return int(self._torch.cuda.mem_get_info()[0])

    def evict(self) -> None:
        self._buffer.zero_()  # twice as large as the L2 cache

    def look(self) -> None:
        reasons = self._state.read_throttle_reasons() if self._state is not None else None
        self._throttle_reasons |= dict.fromkeys(reasons or ())

    def throttle_reasons(self) -> list[str]:
        return list(self._throttle_reasons)

    def measure_memory(self, prepare: Callable[[], object], phases: Phases) -> Memory | None:
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
