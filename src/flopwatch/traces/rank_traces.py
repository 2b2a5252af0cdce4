"""Traces of several ranks of one job: which rank the others wait for.

In a collective all ranks leave together, so that the one that comes last has the shortest kernel:
what a rank's kernel takes beyond the shortest of its process group, it has waited for others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.errors import UsageError
from flopwatch.traces.explained_trace import ExplainedTrace

EVEN = 0.02
"""Of a step: with less than that to wait, no rank is named a straggler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankShare:
    """What a rank did in an average step."""

    rank: int
    trace: ExplainedTrace
    waiting_ns: float | None
    """In its collectives, for other ranks; None: there are none that all ranks have."""
    caused_ns: float | None
    """What other ranks waited, on average, for it alone: where it came last."""
    last_in: int
    """Collectives that it came last to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankComparison:
    ranks: Sequence[RankShare]
    collectives: int
    """That several of these ranks have."""
    world_size: int | None

    @property
    def straggler(self) -> RankShare | None:
        """The rank that the others wait for most; None where they wait for nobody in particular."""
        known = [share for share in self.ranks if share.caused_ns]
        if not known:
            return None
        worst = max(known, key=lambda share: share.caused_ns or 0.0)
        is_much = (worst.caused_ns or 0.0) > EVEN * worst.trace.step_ns
        return worst if is_much and worst.last_in > self.collectives / len(self.ranks) else None


def is_one_job(traces: Sequence[ExplainedTrace]) -> bool:
    """Whether they are ranks, each of them once."""
    ranks = [trace.rank for trace in traces]
    return None not in ranks and len(set(ranks)) == len(ranks)


def compare_ranks(traces: Sequence[ExplainedTrace]) -> RankComparison:
    _check(traces)
    ordered = sorted(traces, key=lambda trace: trace.rank or 0)
    times = _match_collectives(ordered)
    waiting = [0.0] * len(ordered)
    caused = [0.0] * len(ordered)
    last_in = [0] * len(ordered)
    for each in times:
        latest = min(each, key=lambda place: each[place])
        last_in[latest] += 1
        for place, time in each.items():
            waiting[place] += time - each[latest]
            caused[latest] += (time - each[latest]) / (len(each) - 1)
    is_known = bool(times)
    return RankComparison(
        ranks=[
            RankShare(
                rank=trace.rank or 0,
                trace=trace,
                waiting_ns=waiting[place] / trace.count if is_known else None,
                caused_ns=caused[place] / trace.count if is_known else None,
                last_in=last_in[place],
            )
            for place, trace in enumerate(ordered)
        ],
        collectives=len(times),
        world_size=ordered[0].world_size,
    )


def _check(traces: Sequence[ExplainedTrace]) -> None:
    """Refuse what is no job."""
    unknown = [trace.file for trace in traces if trace.rank is None]
    if unknown:
        raise UsageError(
            f"{unknown[0]} does not say which rank it is of, so that ranks cannot be compared; "
            "explain one file, or two with --compare"
        )
    seen: dict[int | None, str] = {}
    for trace in traces:
        if trace.rank in seen:
            raise UsageError(
                f"{seen[trace.rank]} and {trace.file} are both of rank {trace.rank}, so that they "
                "are of different jobs; name one trace of each rank, or two with --compare"
            )
        seen[trace.rank] = trace.file
    first = traces[0]
    for trace in traces[1:]:
        if trace.world_size != first.world_size:
            raise UsageError(
                f"{first.file} is of a job of {first.world_size} ranks and {trace.file} of one of "
                f"{trace.world_size}: these are different jobs; compare two with --compare"
            )
        if set(_list_steps(trace)) & set(_list_steps(first)) or not first.steps or not trace.steps:
            continue
        raise UsageError(
            f"{first.file} and {trace.file} have no step in common: these are different jobs, or "
            "parts of one; compare two with --compare"
        )


def _list_steps(trace: ExplainedTrace) -> list[str]:
    return [step.name for step in trace.steps]


def _match_collectives(traces: Sequence[ExplainedTrace]) -> list[dict[int, int]]:
    """Times of each collective by place of the rank: those of one name and process group, in
    their order; of ranks that have as many of them."""
    times: dict[tuple[str, str | None], dict[int, list[int]]] = defaultdict(dict)
    for place, trace in enumerate(traces):
        for collective in trace.collectives:
            key = collective.name, collective.group
            times[key].setdefault(place, []).append(collective.time_ns)
    return [
        dict(zip(by_rank, each, strict=True))
        for by_rank in times.values()
        if len(by_rank) > 1 and len({len(each) for each in by_rank.values()}) == 1
        for each in zip(*by_rank.values(), strict=True)
    ]
