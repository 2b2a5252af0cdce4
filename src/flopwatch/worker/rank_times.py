"""The times of a job, from what each of its ranks notes while it runs a step.

A rank keeps a journal: when it came to each collective, and left it. All ranks start a run at the
same time, on one clock. A phase of the job ends when the last rank has ended it. At a collective,
all ranks wait for the last one; what follows is the transfer of data. This module knows neither
torch nor processes.

What is not known is None: a workload may not have seen its collectives, or ranks not the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from flopwatch.devices.base import Clock

Item = TypeVar("Item")


@dataclass(slots=True)
class Visit:
    """Marks of the clock. A rank that does not stop at a collective, since it has other work to do
    meanwhile, has not left it where it arrived: `left` is None."""

    arrived: Any
    left: Any | None
    began: Any | None = None
    """Of the collective itself, where it may run beside other work of the rank."""
    ended: Any | None = None
    """Likewise; noted by whoever sees it end, which may be later."""


class Journal:
    """Of one workload on one rank; the engine clears it before a run and reads it after."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.visits: list[Visit] = []
        self.is_complete = True
        """Whether it sees all collectives."""

    def read(self) -> list[Visit] | None:
        """None where it has not seen all."""
        return self.visits if self.is_complete else None

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Around a collective that the rank is stopped by until it is done."""
        arrived = self.clock.mark()
        yield
        self.visits.append(Visit(arrived, self.clock.mark()))

    def pass_by(self) -> Visit:
        """At a collective that goes on in the background."""
        now = self.clock.mark()
        visit = Visit(now, None, now)
        self.visits.append(visit)
        return visit

    def clear(self) -> None:
        self.visits = []


@dataclass(frozen=True, slots=True)
class Stop:
    """A rank at a collective."""

    arrived_ns: float
    left_ns: float | None
    """None where it went on with other work."""
    span_ns: tuple[float, float] | None = None
    """From the collective's own beginning to its end, where it ran beside other work."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one rank did in one run, in nanoseconds of the clock that all share."""

    began_ns: float
    ended_ns: tuple[float, ...]
    """Each phase."""
    stops: tuple[Stop, ...] | None = ()

    @property
    def phase_ns(self) -> list[float]:
        return _differences(self.began_ns, self.ended_ns)


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank's samples get from its runs."""

    phase_ns: list[float]
    waiting_ns: float | None
    transfer_ns: float | None
    overlapped_ns: float | None = None
    """In which a collective ran, and did not stop the rank."""


def combine(runs: Sequence[Run]) -> list[float]:
    """How long each phase of the job took, from the first start to the last end.

    >>> combine([Run(0.0, (4.0, 9.0)), Run(1.0, (6.0, 8.0))])
    [6.0, 3.0]
    """
    began_ns = min(run.began_ns for run in runs)
    return _differences(began_ns, [max(ends) for ends in _columns(run.ended_ns for run in runs)])


def split(runs: Sequence[Run]) -> list[Share]:
    """What each rank did, of one run of the job.

    >>> fast = Run(0.0, (10.0,), (Stop(2.0, 9.0),))
    >>> slow = Run(0.0, (10.0,), (Stop(7.0, 9.0),))
    >>> [(share.waiting_ns, share.transfer_ns) for share in split([fast, slow])]
    [(5.0, 2.0), (0.0, 2.0)]
    """
    by_rank = [run.stops for run in runs if run.stops is not None]
    if len(by_rank) < len(runs) or len({len(stops) for stops in by_rank}) > 1:
        # Not the same collectives on all ranks: which rank waited for which is not known.
        return [Share(run.phase_ns, None, None, None) for run in runs]
    last_ns = [max(stop.arrived_ns for stop in stops) for stops in _columns(by_rank)]
    return [_share(run, stops, last_ns) for run, stops in zip(runs, by_rank, strict=True)]


def fold(phase_ns: Sequence[float], phases: int) -> list[float]:
    """The phases of many runs that followed each other, each summed up.

    >>> fold([1.0, 10.0, 2.0, 20.0], 2)
    [3.0, 30.0]
    """
    return [sum(phase_ns[position::phases]) for position in range(phases)]


def fold_share(share: Share, phases: int) -> Share:
    """Of a window of runs: what an average one of them has."""
    runs = len(share.phase_ns) // phases
    of_collectives = (share.waiting_ns, share.transfer_ns, share.overlapped_ns)
    return Share(
        [ns / runs for ns in fold(share.phase_ns, phases)],
        *(None if ns is None else ns / runs for ns in of_collectives),
    )


def average(shares: Sequence[Share]) -> Share:
    """Of the runs of one sample."""
    number = len(shares)
    return Share(
        [sum(column) / number for column in _columns(share.phase_ns for share in shares)],
        _average([share.waiting_ns for share in shares]),
        _average([share.transfer_ns for share in shares]),
        _average([share.overlapped_ns for share in shares]),
    )


def _average(times_ns: Sequence[float | None]) -> float | None:
    known = [ns for ns in times_ns if ns is not None]
    return sum(known) / len(known) if len(known) == len(times_ns) else None


def _share(run: Run, stops: Sequence[Stop], last_ns: Sequence[float]) -> Share:
    waiting_ns = transfer_ns = 0.0
    for stop, last in zip(stops, last_ns, strict=True):
        if stop.left_ns is not None:
            # Nothing where the collective was over before the rank came to need it.
            stopped_ns = max(0.0, stop.left_ns - stop.arrived_ns)
            # Never longer than it was there: clocks of different nodes agree only so far.
            waited_ns = min(last - stop.arrived_ns, stopped_ns)
            waiting_ns += waited_ns
            transfer_ns += stopped_ns - waited_ns
    return Share(run.phase_ns, waiting_ns, transfer_ns, _count_overlapped_ns(stops))


def _count_overlapped_ns(stops: Sequence[Stop]) -> float:
    """Of all times in which a collective ran, those in which the rank did not stand still for one.

    >>> _count_overlapped_ns([Stop(0.0, None, (0.0, 6.0)), Stop(4.0, 9.0, (5.0, 9.0))])
    4.0
    """
    spans_ns = [stop.span_ns for stop in stops if stop.span_ns is not None]
    still_ns = [(stop.arrived_ns, stop.left_ns) for stop in stops if stop.left_ns is not None]
    return _count_covered_ns([*spans_ns, *still_ns]) - _count_covered_ns(still_ns)


def _count_covered_ns(intervals_ns: Iterable[tuple[float, float]]) -> float:
    """By any of them."""
    covered_ns, reached_ns = 0.0, float("-inf")
    for start_ns, end_ns in sorted(intervals_ns):
        covered_ns += max(0.0, end_ns - max(start_ns, reached_ns))
        reached_ns = max(reached_ns, end_ns)
    return covered_ns


def _differences(start: float, ends: Sequence[float]) -> list[float]:
    return [end - begin for begin, end in zip((start, *ends), ends, strict=False)]


def _columns(rows: Iterable[Sequence[Item]]) -> list[tuple[Item, ...]]:
    return list(zip(*rows, strict=True))
