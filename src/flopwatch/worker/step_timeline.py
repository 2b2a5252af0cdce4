"""One step of a job as it went: what each rank did, from when to when.

On a rank's lane lie its passes of micro-batches, or where it has no pipeline its phases; and on top
of them what it did not compute in: data that moved, and waiting for other ranks, which between
stages of a pipeline is its bubble.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flopwatch.analysis.statistics import median
from flopwatch.records.record import RankTimeline
from flopwatch.worker.rank_times import (
    BUBBLE,
    TRANSFER,
    WAITING,
    Run,
    Stop,
    divide,
    find_last_ns,
    is_piped,
)

SHORTEST = 1e-3
"""Of a step: a stop that is shorter cannot be seen."""
MOST_SPANS = 1000
"""Of a rank: beyond so many, the longest stops are kept."""


@dataclass(frozen=True, slots=True)
class Span:
    kind: str
    begin_ns: float
    end_ns: float
    stage: int | None = None
    micro_batch: int | None = None
    exchange: str = ""


def choose_typical(totals_ns: Sequence[float], among: Sequence[int]) -> int:
    """Of these samples, the one that is closest to the median of all.

    >>> choose_typical([9.0, 1.0, 2.0, 3.0], [0, 1, 3])
    3
    """
    middle_ns = median(totals_ns)
    return min(among, key=lambda place: abs(totals_ns[place] - middle_ns))


def make_timeline(runs: Sequence[Run], phases: Sequence[str]) -> list[RankTimeline]:
    """By rank, of the last step of a run, which may have several. Times are from its beginning."""
    began_ns = min(_find_step(run, len(phases))[0] for run in runs)
    ended_ns = max(run.ended_ns[-1] for run in runs)
    last_ns = find_last_ns(runs)
    lanes = []
    for number, run in enumerate(runs):
        passes = list(_list_passes(run, phases))
        stops: list[Span] = []
        if last_ns is not None:
            for stop, last in zip(run.stops or (), last_ns[number], strict=True):
                stops += _list_stop(stop, last, number)
            if is_piped(runs):
                stops.append(Span(BUBBLE, run.ended_ns[-1], ended_ns, exchange="end of the step"))
        shortest_ns = SHORTEST * (ended_ns - began_ns)
        seen = [
            span
            for span in stops
            if span.end_ns - span.begin_ns >= shortest_ns and span.begin_ns >= began_ns
        ]
        seen.sort(key=lambda span: span.begin_ns - span.end_ns)
        kept = sorted([*passes, *seen[:MOST_SPANS]], key=lambda span: span.begin_ns)
        lanes.append(_lay_out(kept, began_ns))
    return lanes


def _find_step(run: Run, phases: int) -> tuple[float, float]:
    """When the last step of a run began and ended."""
    ends_ns = (run.began_ns, *run.ended_ns)
    return ends_ns[-1 - phases], ends_ns[-1]


def _list_passes(run: Run, phases: Sequence[str]) -> Iterator[Span]:
    began_ns, _ = _find_step(run, len(phases))
    turns = [turn for turn in run.turns if turn.began_ns >= began_ns]
    for turn in turns:
        yield Span(turn.work, turn.began_ns, turn.ended_ns, turn.stage, turn.micro_batch)
    for phase, end_ns in zip(phases, run.ended_ns[-len(phases) :], strict=True):
        if not any(began_ns <= turn.began_ns < end_ns for turn in turns):
            yield Span(phase, began_ns, end_ns)
        began_ns = end_ns


def _list_stop(stop: Stop, last_ns: float, rank: int) -> Iterator[Span]:
    if stop.left_ns is None:
        return
    exchange = stop.exchange
    waited_ns, moved_ns = divide(stop, last_ns)
    told = " ".join(filter(None, [exchange.kind, exchange.dimension]))
    if exchange.is_point_to_point:
        source, target = exchange.ranks
        told = f"send to rank {target}" if source == rank else f"receive from rank {source}"
    moves_from_ns = stop.arrived_ns + waited_ns
    kind = BUBBLE if exchange.is_point_to_point else WAITING
    yield Span(kind, stop.arrived_ns, moves_from_ns, exchange=told)
    yield Span(TRANSFER, moves_from_ns, moves_from_ns + moved_ns, exchange=told)


def _lay_out(spans: Sequence[Span], began_ns: float) -> RankTimeline:
    return RankTimeline(
        kind=[span.kind for span in spans],
        begin_ns=[round(max(0.0, span.begin_ns - began_ns)) for span in spans],
        end_ns=[round(max(0.0, span.end_ns - began_ns)) for span in spans],
        stage=[span.stage for span in spans],
        micro_batch=[span.micro_batch for span in spans],
        exchange=[span.exchange for span in spans],
    )
