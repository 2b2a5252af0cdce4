"""NVIDIA GPUs, and AMD's under the same name in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from flopwatch.devices.base import (
    FALLBACK_CACHE_BYTES,
    Clock,
    EventMarks,
    Memory,
    Phases,
    measure_allocations,
)
from flopwatch.devices.gpu_state import Reader, open_reader

RUNS_BEFORE_CAPTURE = 3
"""As torch's documentation of CUDA graphs has it."""


class CudaClock(EventMarks):
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
        return self.list_between_ns(marks)

    def can_mark(self) -> bool:
        return not self._cuda.is_current_stream_capturing()


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

    def capture(self, prepare: Callable[[], object], phases: Phases) -> Phases:
        cuda = self._torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):  # what is made in the first runs must not become part of a graph
            for _ in range(RUNS_BEFORE_CAPTURE):
                prepare()
                passed: tuple[Any, ...] = ()
                for phase in phases.values():
                    passed = (phase(*passed),)
        cuda.current_stream().wait_stream(stream)
        prepare()
        # One pool: a graph finds what the one before it has left where that left it.
        pool, graphs, passed = cuda.graph_pool_handle(), {}, ()
        for name, phase in phases.items():
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, pool=pool):
                passed = (phase(*passed),)
            graphs[name] = partial(_replay, graph, passed[0])
        return graphs

    def measure_memory(self, prepare: Callable[[], object], phases: Phases) -> Memory | None:
        return measure_allocations(lambda name: getattr(self._torch.cuda, name)(), prepare, phases)


def _replay(graph: Any, result: Any, *_: Any) -> Any:
    """`result` is what the phase returned when it was captured; a replay writes to it anew."""
    graph.replay()
    return result
