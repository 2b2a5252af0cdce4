"""The CPU's clock and caches, and memory by phase from a trace."""

from __future__ import annotations

import torch

from flopwatch.devices.base import Memory, open_backend
from flopwatch.devices.cpu import (
    MARK_BYTES,
    PHASE,
    CpuBackend,
    CpuClock,
    Detail,
    Event,
    Trace,
    count_held_bytes,
    find_phases,
    measure_memory,
)
from flopwatch.records.record import PhaseMemory

MARK = 77


def memory(ts: float, size: int, total: int, at: int = 1) -> Event:
    return Event(name="[memory]", ts=ts, args=Detail(total=total, size=size, at=at))


def phase(name: str, ts: float, dur: float) -> Event:
    return Event(name=PHASE + name, cat="user_annotation", ts=ts, dur=dur)


OP = Event(name="aten::add", cat="cpu_op", ts=6)
FIRST_RUN = [
    OP,
    phase("forward", 0, 1.5),
    memory(1, 900, 900),
    memory(2, MARK_BYTES, 900 + MARK_BYTES, at=MARK),  # by chance as large, and at the same place
    memory(3, -MARK_BYTES, 900, at=MARK),
]
AT_MARK = 900 + MARK_BYTES
SECOND_RUN = [
    memory(5, MARK_BYTES, AT_MARK, at=MARK),
    phase("forward", 6, 4),
    memory(7, -900, AT_MARK - 900),
    memory(8, 1200, AT_MARK + 300),
    memory(9, -200, AT_MARK + 100),
    phase("backward", 11, 4),
    memory(12, 50, AT_MARK + 150),
    memory(13, -1050, AT_MARK - 900),
]


def test_the_phases_are_those_of_the_second_run() -> None:
    # In any order: a trace is sorted by thread.
    assert find_phases(Trace(events=SECOND_RUN[::-1] + FIRST_RUN), MARK) == {
        "forward": PhaseMemory(peak_bytes=300, end_bytes=100),
        "backward": PhaseMemory(peak_bytes=150, end_bytes=0),
    }


def test_a_run_that_allocates_nothing_has_a_peak_of_0() -> None:
    silent = [*FIRST_RUN, SECOND_RUN[0], phase("forward", 6, 4)]
    assert find_phases(Trace(events=silent), MARK) == {
        "forward": PhaseMemory(peak_bytes=0, end_bytes=0)
    }


def test_where_it_cannot_be_known_it_is_none() -> None:
    assert find_phases(Trace(events=FIRST_RUN[:3]), MARK) is None  # the mark was not heard
    silent = [event for event in FIRST_RUN + SECOND_RUN if event is not OP]
    assert find_phases(Trace(events=silent), MARK) is None  # no operation of torch


def test_a_real_run_keeps_between_its_phases_what_it_returns() -> None:
    x = torch.ones(1000)
    found = measure_memory(
        lambda: None,
        {"widen": lambda: (x + x).repeat(3), "narrow": lambda wide: wide[:1000] * 2.0},
    )
    assert isinstance(found, Memory)
    assert found.phases["widen"].end_bytes == 12_000
    assert found.phases["widen"].peak_bytes >= 16_000
    assert 16_000 <= found.phases["narrow"].peak_bytes < 17_000  # a scalar is a tensor too
    assert found.resident_bytes >= 4000


def test_what_is_held_counts_once() -> None:
    before = count_held_bytes()
    x = torch.ones(1000)
    views = [x[:10], x.view(10, 100), torch.empty(10**9, device="meta")]
    assert count_held_bytes() - before == 4000
    del views


def test_cpu_backend() -> None:
    backend = open_backend("cpu", 1 << 20)
    assert isinstance(backend, CpuBackend)
    backend.evict()
    assert backend.throttle_reasons() == []
    assert 0 < backend.count_free_bytes() < 2**50


def test_cpu_clock_knows_its_resolution() -> None:
    ticks = iter(range(0, 10**6, 40))
    assert CpuClock(lambda: next(ticks)).resolution_ns == 40
    coarse = iter(n // 10 * 1000 for n in range(10**6))  # ten readings a tick
    assert CpuClock(lambda: next(coarse)).resolution_ns == 1000
    assert 1 <= CpuClock().resolution_ns < 1e6
