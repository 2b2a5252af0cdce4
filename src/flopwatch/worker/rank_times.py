"""The times of a job, from what each of its ranks notes while it runs a step.

A rank keeps a journal: when it came to each exchange with others, and left it; and when it computed
which pass of which pipeline stage. All ranks start a run at the same time, on one clock. A phase of
the job ends when the last rank has ended it.

An exchange is a collective of a group of ranks, or what one rank sends to another. The n-th of a
kind in a group is the same one on all of its ranks. All of them wait for the last one; what follows
is the transfer of data. So a step of a rank is divided:

    transfer     in an exchange, all ranks of which are there
    waiting      in a collective, for the last rank to come to it: a straggler
    bubble       for another stage of a pipeline, to send or to receive, and for the last rank once
                 its own step is over
    working      everything else

This module knows neither torch nor processes. What is not known is None: a workload may not have
seen its exchanges, or ranks not the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from flopwatch.devices.base import Clock

Item = TypeVar("Item")
Pass = Literal["forward", "backward", "weight"]
"""Of a pipeline stage: backward is of the whole gradient, or where gradients of weights come later,
of the input."""
SEND, RECEIVE = "send", "receive"
WAITING, TRANSFER, BUBBLE = "waiting", "transfer", "bubble"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What ranks do together: the same on all of them."""

    kind: str
    """As peaks name it: all-gather, all-reduce, reduce-scatter, all-to-all; or send, receive."""
    ranks: tuple[int, ...] = ()
    """Of its group, in order; of what is sent, its source and its destination. Empty: all ranks."""
    dimension: str = ""
    """Of the device mesh, that the group lies along."""

    @property
    def is_point_to_point(self) -> bool:
        return self.kind in (SEND, RECEIVE)

    @property
    def meeting(self) -> tuple[str, tuple[int, ...]]:
        """What ranks meet by: a send meets the other rank's receive."""
        return (SEND if self.is_point_to_point else self.kind), self.ranks


ANY = Exchange("collective")
"""One that a workload has noted without saying more: of all ranks."""


@dataclass(slots=True)
class Visit:
    """Marks of the clock. A rank that does not stop at an exchange, since it has other work to do
    meanwhile, has not left it where it arrived: `left` is None."""

    arrived: Any
    left: Any | None
    began: Any | None = None
    """Of the exchange itself, where it may run beside other work of the rank: from here on this
    rank keeps nobody waiting."""
    ended: Any | None = None
    """Likewise; noted by whoever sees it end, which may be later."""
    exchange: Exchange = ANY


@dataclass(slots=True)
class Turn:
    """Of a pipeline stage: a pass of a micro-batch, between marks of the clock."""

    work: Pass
    stage: int
    micro_batch: int
    began: Any
    ended: Any


@dataclass(frozen=True, slots=True)
class Notes:
    """Of one run, as a journal has them."""

    visits: Sequence[Visit] | None = None
    """None where it has not seen all."""
    turns: Sequence[Turn] = ()


class Journal:
    """Of one workload on one rank; the engine clears it before a run and reads it after."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.visits: list[Visit] = []
        self.turns: list[Turn] = []
        self.is_complete = True
        """Whether it sees all exchanges."""

    def read(self) -> Notes:
        return Notes(self.visits if self.is_complete else None, self.turns)

    @contextmanager
    def visit(self, exchange: Exchange = ANY) -> Iterator[None]:
        """Around a collective that the rank is stopped by until it is done."""
        arrived = self.clock.mark()
        yield
        self.visits.append(Visit(arrived, self.clock.mark(), exchange=exchange))

    def pass_by(self, exchange: Exchange = ANY) -> Visit:
        """At an exchange that goes on in the background."""
        now = self.clock.mark()
        visit = Visit(now, None, now, exchange=exchange)
        self.visits.append(visit)
        return visit

    def clear(self) -> None:
        self.visits, self.turns = [], []


@dataclass(frozen=True, slots=True)
class Stop:
    """A rank at an exchange."""

    arrived_ns: float
    left_ns: float | None
    """None where it went on with other work."""
    span_ns: tuple[float, float] | None = None
    """From the exchange's own beginning to its end, where it ran beside other work."""
    ready_ns: float | None = None
    """From when on this rank kept nobody waiting, where that is not when it arrived."""
    exchange: Exchange = ANY

    @property
    def here_ns(self) -> float:
        return self.arrived_ns if self.ready_ns is None else self.ready_ns


@dataclass(frozen=True, slots=True)
class StageTurn:
    """A `Turn` in nanoseconds."""

    work: Pass
    stage: int
    micro_batch: int
    began_ns: float
    ended_ns: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one rank did in one run, in nanoseconds of the clock that all share."""

    began_ns: float
    ended_ns: tuple[float, ...]
    """Each phase."""
    stops: tuple[Stop, ...] | None = ()
    turns: tuple[StageTurn, ...] = ()

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
    """In which an exchange ran, and did not stop the rank."""
    bubble_ns: float | None = None
    """None where there is no pipeline, too."""
    run: Run | None = None
    """The last one, where it is kept."""


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
    last_ns = find_last_ns(runs)
    if last_ns is None:
        return [Share(run.phase_ns, None, None, None) for run in runs]
    ended_ns = max(run.ended_ns[-1] for run in runs)
    return [
        _share(run, last, ended_ns if is_piped(runs) else None)
        for run, last in zip(runs, last_ns, strict=True)
    ]


def is_piped(runs: Sequence[Run]) -> bool:
    """Whether they are of a pipeline: there is none without anything to send."""
    return any(stop.exchange.is_point_to_point for run in runs for stop in run.stops or ())


def find_last_ns(runs: Sequence[Run]) -> list[list[float]] | None:
    """For each rank and each of its stops, when the last rank was ready for that exchange; None
    where ranks did not note the same ones, so that who waited for whom is not known.

    >>> pair = Exchange("all-reduce", (0, 2))
    >>> first, second = (Run(0.0, (9.0,), (Stop(ns, 8.0, exchange=pair),)) for ns in (1.0, 5.0))
    >>> find_last_ns([first, Run(0.0, (9.0,)), second])
    [[5.0], [], [5.0]]
    """
    meetings: dict[Any, list[float]] = {}
    places = []
    for run in runs:
        if run.stops is None:
            return None
        seen: Counter[Any] = Counter()
        keys = []
        for stop in run.stops:
            meeting = stop.exchange.meeting
            keys.append((meeting, seen[meeting]))
            seen[meeting] += 1
            meetings.setdefault(keys[-1], []).append(stop.here_ns)
        places.append(keys)
    for ((_, ranks), _), there in meetings.items():
        if len(there) != (len(ranks) or len(runs)):
            return None
    return [[max(meetings[key]) for key in keys] for keys in places]


def fold(phase_ns: Sequence[float], phases: int) -> list[float]:
    """The phases of many runs that followed each other, each summed up.

    >>> fold([1.0, 10.0, 2.0, 20.0], 2)
    [3.0, 30.0]
    """
    return [sum(phase_ns[position::phases]) for position in range(phases)]


def fold_share(share: Share, phases: int) -> Share:
    """Of a window of runs: what an average one of them has."""
    runs = len(share.phase_ns) // phases

    def divide(ns: float | None) -> float | None:
        return None if ns is None else ns / runs

    return replace(
        share,
        phase_ns=[ns / runs for ns in fold(share.phase_ns, phases)],
        waiting_ns=divide(share.waiting_ns),
        transfer_ns=divide(share.transfer_ns),
        overlapped_ns=divide(share.overlapped_ns),
        bubble_ns=divide(share.bubble_ns),
    )


def average(shares: Sequence[Share]) -> Share:
    """Of the runs of one sample."""
    number = len(shares)
    return Share(
        [sum(column) / number for column in _columns(share.phase_ns for share in shares)],
        _average([share.waiting_ns for share in shares]),
        _average([share.transfer_ns for share in shares]),
        _average([share.overlapped_ns for share in shares]),
        _average([share.bubble_ns for share in shares]),
        shares[-1].run,
    )


def _average(times_ns: Sequence[float | None]) -> float | None:
    known = [ns for ns in times_ns if ns is not None]
    return sum(known) / len(known) if len(known) == len(times_ns) else None


def _share(run: Run, last_ns: Sequence[float], job_ended_ns: float | None) -> Share:
    """`job_ended_ns` is when the last rank of a pipeline ended; None where there is none."""
    stops = run.stops or ()
    waiting_ns = transfer_ns = bubble_ns = 0.0
    for stop, last in zip(stops, last_ns, strict=True):
        waited_ns, moved_ns = divide(stop, last)
        transfer_ns += moved_ns
        if stop.exchange.is_point_to_point:
            bubble_ns += waited_ns
        else:
            waiting_ns += waited_ns
    overlapped_ns = count_overlapped_ns(stops)
    if job_ended_ns is None:
        return Share(run.phase_ns, waiting_ns, transfer_ns, overlapped_ns)
    bubble_ns += max(0.0, job_ended_ns - run.ended_ns[-1])
    return Share(run.phase_ns, waiting_ns, transfer_ns, overlapped_ns, bubble_ns)


def divide(stop: Stop, last_ns: float) -> tuple[float, float]:
    """How long a rank waited at an exchange, and how long data moved, while it stood still."""
    if stop.left_ns is None:
        return 0.0, 0.0
    # Nothing where the exchange was over before the rank came to need it.
    stopped_ns = max(0.0, stop.left_ns - stop.arrived_ns)
    # Never longer than it was there: clocks of different nodes agree only so far.
    waited_ns = min(max(0.0, last_ns - stop.arrived_ns), stopped_ns)
    return waited_ns, stopped_ns - waited_ns


def count_overlapped_ns(stops: Sequence[Stop]) -> float:
    """Of all times in which an exchange ran, those in which the rank did not stand still for one.

    >>> count_overlapped_ns([Stop(0.0, None, (0.0, 6.0)), Stop(4.0, 9.0, (5.0, 9.0))])
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
