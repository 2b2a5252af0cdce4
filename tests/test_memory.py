"""Peak memory from a trace; real traces are in test_run_workload.py."""

from __future__ import annotations

from flopwatch.engine.memory import MARK_BYTES, Detail, Event, Trace, find_peak_bytes

MARK = 77


def memory(ts: float, size: int, total: int, at: int = 1) -> Event:
    return Event(name="[memory]", ts=ts, args=Detail(total=total, size=size, at=at))


OP = Event(name="aten::add", cat="cpu_op", ts=6)
FIRST_RUN = [
    OP,
    memory(1, 900, 900),
    memory(2, MARK_BYTES, 900 + MARK_BYTES, at=MARK),  # by chance as large, and at the same place
    memory(3, -MARK_BYTES, 900, at=MARK),
]
AT_MARK = 900 + MARK_BYTES
SECOND_RUN = [
    memory(5, MARK_BYTES, AT_MARK, at=MARK),
    memory(7, -900, AT_MARK - 900),
    memory(8, 1200, AT_MARK + 300),
    memory(9, -1200, AT_MARK - 900),
]


def test_the_peak_is_that_of_the_second_run() -> None:
    # In any order: a trace is sorted by thread.
    assert find_peak_bytes(Trace(events=SECOND_RUN[::-1] + FIRST_RUN), MARK) == 300


def test_a_run_that_allocates_nothing_has_a_peak_of_0() -> None:
    assert find_peak_bytes(Trace(events=[*FIRST_RUN, SECOND_RUN[0]]), MARK) == 0


def test_where_it_cannot_be_known_it_is_none() -> None:
    assert find_peak_bytes(Trace(events=FIRST_RUN[:2]), MARK) is None  # the mark was not heard
    silent = [event for event in FIRST_RUN + SECOND_RUN if event is not OP]
    assert find_peak_bytes(Trace(events=silent), MARK) is None  # no operation of torch
