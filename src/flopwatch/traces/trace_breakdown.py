"""Where the time of each step of a trace went: rows of whole nanoseconds that add up to the step.

All that ran is laid over one line of time, which is cut wherever something begins or ends. Each
piece counts once: for the kind of work that comes first in KINDS of all that runs in it, so that
communication counts where nothing is computed (the rest of it is overlapped), and memory copies
where there is neither. Where a device does nothing, the host may be waiting for data; else it has
queued something that has not begun (idle), or nothing (a launch gap).

A step of the profiler is a time of the host, and the device follows behind. On the device a step
begins once the host has begun it and what was launched before has ended. Without steps there is one
span, from the first to the last thing that ran.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwatch.lazy import LazyModule
from flopwatch.traces.attribution import (
    CODES,
    AttributedWork,
    HostSegments,
    HostTree,
    attribute,
    find_host_kinds,
    list_segments,
    make_tree,
)
from flopwatch.traces.operation_kinds import KINDS, NOT_COMPUTING, Kind
from flopwatch.traces.trace_events import NONE, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from flopwatch.traces.trace_events import Integers
else:
    np = LazyModule("numpy")

STEP = re.compile(r"ProfilerStep#(\d+)")
WHOLE = "whole trace"


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Of a step, of several, or of a whole trace."""

    name: str
    start_ns: int
    total_ns: int
    rows: Mapping[Kind, int]
    """They add up to the total. Communication is the exposed one."""
    overlapped_ns: int
    """Communication while something is computed, which is in the rows of that."""

    @property
    def computing_ns(self) -> int:
        return sum(time for kind, time in self.rows.items() if kind not in NOT_COMPUTING)

    @property
    def communication_ns(self) -> int:
        return self.rows.get("communication", 0) + self.overlapped_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Pieces of time, each with the kind that it counts for."""

    edges: Integers
    kinds: NDArray[np.int8]
    is_overlapped: NDArray[np.bool_]

    def add_up(self, name: str, start: int, end: int) -> Breakdown:
        """Of a time whose ends are edges."""
        first, last = np.searchsorted(self.edges, [start, end])
        times = np.diff(self.edges[first : last + 1])
        kinds = self.kinds[first:last]
        sums = [int(times[kinds == code].sum()) for code in range(len(KINDS))]
        return Breakdown(
            name=name,
            start_ns=start,
            total_ns=end - start,
            rows={kind: time for kind, time in zip(KINDS, sums, strict=True) if time},
            overlapped_ns=int(times[self.is_overlapped[first:last]].sum()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttributedTrace:
    """What is needed of a trace after it was read."""

    trace: Trace
    tree: HostTree
    work: AttributedWork | None
    """None: nothing ran on a device, and the host's own work counts."""
    segments: HostSegments | None
    host_kinds: Integers
    device: int
    """Whose work counts: the busiest."""

    @property
    def is_chosen(self) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = self.trace.work.device == self.device
        return chosen


def attribute_trace(trace: Trace) -> AttributedTrace:
    tree, above = make_tree(trace)
    has_device = trace.is_of_device
    return AttributedTrace(
        trace=trace,
        tree=tree,
        work=attribute(trace, tree, above) if has_device else None,
        segments=None if has_device else list_segments(trace.host),
        host_kinds=find_host_kinds(trace, tree),
        device=_find_busiest(trace) if has_device else NONE,
    )


def _find_busiest(trace: Trace) -> int:
    devices, places = np.unique(trace.work.device, return_inverse=True)
    times = np.bincount(places, weights=trace.work.end - trace.work.start)
    return int(devices[int(times.argmax())])


def break_down(attributed: AttributedTrace) -> tuple[list[Breakdown], Breakdown]:
    """Each step, where there are any, and the whole."""
    starts, ends, kinds = _list_work(attributed)
    span = int(starts.min()), int(ends.max())
    steps = find_steps(attributed, span)
    marks = [mark for _, start, end in steps for mark in (start, end)]
    timeline = _sweep(attributed, (starts, ends, kinds), [*span, *marks])
    return (
        [timeline.add_up(name, start, end) for name, start, end in steps],
        timeline.add_up(WHOLE, *span),
    )


def _list_work(attributed: AttributedTrace) -> tuple[Integers, Integers, Integers]:
    """When what of each kind ran; NONE: nothing that counts."""
    trace = attributed.trace
    if attributed.work is not None:
        chosen = attributed.is_chosen
        work = trace.work
        return work.start[chosen], work.end[chosen], attributed.work.kind[chosen]
    assert attributed.segments is not None
    segments = attributed.segments
    if not len(segments.start):  # operators that took no time
        return trace.host.start, trace.host.end, attributed.host_kinds
    return segments.start, segments.end, attributed.host_kinds[segments.event]


def _sweep(
    attributed: AttributedTrace, work: tuple[Integers, Integers, Integers], marks: Sequence[int]
) -> Timeline:
    starts, ends, kinds = work
    rest: list[tuple[Kind, Integers, Integers]] = []
    nothing: Kind = "between operations"
    if attributed.work is not None:
        rest, nothing = _list_idle(attributed, attributed.work)
    edges = np.unique(
        np.concatenate([starts, ends, *(side for _, *pair in rest for side in pair), marks])
    ).astype(np.int64)
    found = np.full(max(len(edges) - 1, 0), CODES[nothing], dtype=np.int8)
    for kind, begun, ended in reversed(rest):
        found[_cover(edges, begun, ended)] = CODES[kind]
    communication = np.zeros(len(found), dtype=np.bool_)
    for code in sorted(set(kinds.tolist()) - {NONE}, reverse=True):
        of_kind = kinds == code
        covered = _cover(edges, starts[of_kind], ends[of_kind])
        found[covered] = code
        if code == CODES["communication"]:
            communication = covered
    is_computing = np.isin(found, [CODES[kind] for kind in KINDS if kind not in NOT_COMPUTING])
    return Timeline(edges=edges, kinds=found, is_overlapped=communication & is_computing)


def _list_idle(
    attributed: AttributedTrace, work: AttributedWork
) -> tuple[list[tuple[Kind, Integers, Integers]], Kind]:
    """Times that count where the device does nothing, the more telling first; and what all other
    time is."""
    host, chosen = attributed.trace.host, attributed.is_chosen
    is_data = attributed.host_kinds == CODES["waiting for data"]
    rest: list[tuple[Kind, Integers, Integers]] = [
        ("waiting for data", host.start[is_data], host.end[is_data])
    ]
    launches, starts = work.launch[chosen], attributed.trace.work.start[chosen]
    if not (launches != NONE).any():
        return rest, "idle"
    rest.append(("idle", launches, starts))
    return rest, "launch gaps"


def _cover(edges: Integers, starts: Integers, ends: Integers) -> NDArray[np.bool_]:
    """Which pieces between edges are inside of one of the times, at least."""
    size = len(edges)
    begun = np.bincount(np.searchsorted(edges, starts), minlength=size)
    ended = np.bincount(np.searchsorted(edges, ends), minlength=size)
    covered: NDArray[np.bool_] = np.cumsum(begun - ended)[:-1] > 0
    return covered


def find_steps(attributed: AttributedTrace, span: tuple[int, int]) -> list[tuple[str, int, int]]:
    """Names, beginnings and ends, without those that the device did nothing of."""
    marked = _list_marked(attributed.trace)
    if attributed.work is None or not marked:
        return [(name, start, end) for name, start, end in marked if end > start]
    chosen = attributed.is_chosen
    launches, ends = attributed.work.launch[chosen], attributed.trace.work.end[chosen]
    order = np.argsort(launches, kind="stable")
    latest = np.maximum.accumulate(ends[order])

    def find_end(until: int) -> int:
        """Of all that was launched before."""
        count = int(np.searchsorted(launches[order], until))
        return max(until, int(latest[count - 1])) if count else until

    borders = [find_end(start) for _, start, _ in marked]
    borders.append(find_end(max(end for _, _, end in marked)))
    borders = np.maximum.accumulate(np.array(borders, dtype=np.int64)).tolist()
    return [
        (name, begin, end)
        for (name, _, _), begin, end in zip(marked, borders, borders[1:], strict=False)
        if end > begin and begin < span[1] and end > span[0]
    ]


def _list_marked(trace: Trace) -> list[tuple[str, int, int]]:
    """The profiler's steps on the host, in order; each once."""
    wanted = {
        number: f"step {match[1]}"
        for number, name in enumerate(trace.names)
        if (match := STEP.fullmatch(name))
    }
    host = trace.host
    places = np.flatnonzero(np.isin(host.name, list(wanted)))
    found: dict[str, tuple[str, int, int]] = {}
    for place in places[np.argsort(host.start[places], kind="stable")].tolist():
        name = wanted[int(host.name[place])]
        found.setdefault(name, (name, int(host.start[place]), int(host.end[place])))
    return list(found.values())


def add_up(breakdowns: Sequence[Breakdown], name: str) -> Breakdown:
    """Of all of them together."""
    return Breakdown(
        name=name,
        start_ns=breakdowns[0].start_ns,
        total_ns=sum(one.total_ns for one in breakdowns),
        rows={
            kind: time
            for kind in KINDS
            if (time := sum(one.rows.get(kind, 0) for one in breakdowns))
        },
        overlapped_ns=sum(one.overlapped_ns for one in breakdowns),
    )
