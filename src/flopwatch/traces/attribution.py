"""What each kernel is, and which operator it belongs to.

Events of a thread nest, so that an operator is inside of others, of annotations and of modules. A
kernel belongs to the operator that its launch is inside of, by the correlation that both have;
where the launch was not recorded, by the external id. In the backward pass functions of autograd
are around operators: such a function has the sequence number of the operator that made it, and
where its own name says nothing, the scope of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwatch.lazy import LazyModule
from flopwatch.traces.operation_kinds import (
    KINDS,
    NODE,
    Kind,
    find_kernel_kind,
    find_scope_kind,
    find_scoped_kind,
    is_scope,
)
from flopwatch.traces.trace_events import COPY, NONE, OPERATOR, Host, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from flopwatch.traces.trace_events import Integers
else:
    np = LazyModule("numpy")

CODES: dict[Kind, int] = {kind: code for code, kind in enumerate(KINDS)}
"""Kinds as numbers: their places in KINDS."""
MOST_OPERATORS = 6
"""That a kernel's kind is sought in, from the innermost on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostTree:
    """Of each event on the host: what is around it, as places in the table."""

    parent: Integers
    scope: Integers
    """The code of a kind that everything inside has, or NONE."""
    operator: Integers
    """The innermost operator at or around it."""
    shaped: Integers
    """The innermost one at or around it whose FLOPs are known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttributedWork:
    """Of each kernel or copy on a device."""

    kind: Integers
    operator: Integers
    """Its place in the table of the host, or NONE."""
    shaped: Integers
    launch: Integers
    """When the call ended that launched it, or NONE; before the trace, the trace's beginning."""


def nest(start: Integers, end: Integers, thread: Integers) -> tuple[Integers, Integers]:
    """For each event the place of the one around it in its thread, or NONE; and the places of all
    in an order in which those around come first."""
    order = np.lexsort((-end, start, thread))
    starts, ends = start[order].tolist(), end[order].tolist()
    threads = thread[order].tolist()
    parents = [NONE] * len(starts)
    stack: list[int] = []
    current = None
    for place, begun in enumerate(starts):
        if threads[place] != current:
            stack.clear()
            current = threads[place]
        while stack and ends[stack[-1]] <= begun:
            stack.pop()
        if stack:
            parents[place] = stack[-1]
        stack.append(place)
    found = np.array(parents, dtype=np.int64)
    parent = np.empty_like(found)
    parent[order] = np.where(found >= 0, order[found], NONE)
    return parent, order


def make_tree(trace: Trace) -> tuple[HostTree, Integers]:
    """And, for each launch, the event of the host that it is inside of."""
    host, launches = trace.host, trace.launches
    parent, order = nest(
        np.concatenate([host.start, launches.start]),
        np.concatenate([host.end, launches.end]),
        np.concatenate([host.thread, launches.thread]),
    )
    size = len(host)
    while (inside := parent >= size).any():  # calls of the runtime are around nothing
        parent[inside] = parent[parent[inside]]
    own, above = parent[:size], parent[size:]
    places = order[order < size]
    scopes = _find_scopes(trace, own, places)
    is_operator = (host.place == OPERATOR) & ~_mark(trace, is_scope)
    tree = HostTree(
        parent=own,
        scope=scopes,
        operator=_inherit(own, places, np.where(is_operator, np.arange(size), NONE)),
        shaped=_inherit(own, places, np.where(host.shape >= 0, np.arange(size), NONE)),
    )
    return tree, above


def _mark(trace: Trace, holds: Callable[[str], bool]) -> NDArray[np.bool_]:
    """For each event of the host, whether something holds of its name."""
    marks = np.array([holds(name) for name in trace.names] or [False])
    return marks[trace.host.name]


def _inherit(parent: Integers, places: Integers, own: Integers) -> Integers:
    """What an event has itself, or else what the one around it has."""
    values, parents = own.tolist(), parent.tolist()
    for place in places.tolist():
        if values[place] == NONE and parents[place] != NONE:
            values[place] = values[parents[place]]
    return np.array(values, dtype=np.int64)


def _cover(parent: Integers, places: Integers, own: Integers) -> Integers:
    """What the outermost around an event has, itself included."""
    values, parents = own.tolist(), parent.tolist()
    for place in places.tolist():
        around = parents[place]
        if around != NONE and values[around] != NONE:
            values[place] = values[around]
    return np.array(values, dtype=np.int64)


def _find_scopes(trace: Trace, parent: Integers, places: Integers) -> Integers:
    host = trace.host
    kinds = [find_scope_kind(name) for name in trace.names]
    codes = np.array([NONE if kind is None else CODES[kind] for kind in kinds] or [NONE])
    own = codes[host.name]
    scopes = _cover(parent, places, own)
    is_backward = _mark(trace, lambda name: is_scope(name) and not name.startswith(NODE))
    is_backward &= host.sequence >= 0
    is_forward = (host.sequence >= 0) & ~_mark(trace, is_scope)
    if not is_backward.any() or not is_forward.any():
        return scopes
    # The last operator with a number, by the time at which it began, made the function.
    made = np.flatnonzero(is_forward)
    made = made[np.argsort(host.start[made], kind="stable")]
    by_number = dict(zip(host.sequence[made].tolist(), scopes[made].tolist(), strict=True))
    functions = np.flatnonzero(is_backward)
    found = [by_number.get(number, NONE) for number in host.sequence[functions].tolist()]
    taken = np.array(found, dtype=np.int64)
    taken[np.isin(taken, [CODES["optimizer"], CODES["waiting for data"]])] = NONE
    own[functions] = np.where(own[functions] == NONE, taken, own[functions])
    return _cover(parent, places, own)


def attribute(trace: Trace, tree: HostTree, above: Integers) -> AttributedWork:
    work, launches = trace.work, trace.launches
    launch = _match(launches.correlation, work.correlation)
    called_by = np.where(launch >= 0, take(above, launch), NONE)
    by_id = _match(trace.host.external, work.external)
    called_by = np.where((launch < 0) & (called_by < 0), by_id, called_by)
    return AttributedWork(
        kind=_find_kinds(trace, tree, called_by),
        operator=take(tree.operator, called_by),
        shaped=take(tree.shaped, called_by),
        launch=_find_launch_ends(trace, launch),
    )


def _match(keys: Integers, wanted: Integers) -> Integers:
    """The place of each wanted key, the last where there are several; NONE where there is none."""
    if not len(keys):
        return np.full(len(wanted), NONE, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    places = np.searchsorted(keys[order], wanted, side="right") - 1
    found = order[np.maximum(places, 0)]
    is_there = (places >= 0) & (keys[found] == wanted) & (wanted != NONE)
    return np.where(is_there, found, NONE)


def take(values: Integers, places: Integers) -> Integers:
    """Values at places, NONE where there is no place."""
    if not len(values):
        return np.full(len(places), NONE, dtype=np.int64)
    found: Integers = np.where(places >= 0, values[np.maximum(places, 0)], NONE)
    return found


def _find_kinds(trace: Trace, tree: HostTree, called_by: Integers) -> Integers:
    scopes = take(tree.scope, called_by).tolist()
    operators = take(tree.operator, called_by).tolist()
    names, works = trace.work.name.tolist(), trace.work.work.tolist()
    operator_names = trace.host.name.tolist()
    known: dict[tuple[int, int, int], int] = {}
    kinds = []
    for name, work, scope, operator in zip(names, works, scopes, operators, strict=True):
        if work == COPY:
            kinds.append(CODES["memory copies"])
            continue
        # Operators of one name are inside of others, which rarely matters and costs much to ask.
        key = (name, scope, operator_names[operator] if operator != NONE else NONE)
        if key not in known:
            around = [trace.names[at] for at in _list_names(trace, tree, operator)]
            kind = find_kernel_kind(
                trace.names[name], None if scope == NONE else KINDS[scope], around
            )
            known[key] = CODES[kind]
        kinds.append(known[key])
    return np.array(kinds, dtype=np.int64)


def _list_names(trace: Trace, tree: HostTree, operator: int) -> Iterator[int]:
    """Of operators around, the innermost first."""
    for _ in range(MOST_OPERATORS):
        if operator == NONE:
            return
        yield int(trace.host.name[operator])
        parent = int(tree.parent[operator])
        operator = int(tree.operator[parent]) if parent != NONE else NONE


def _find_launch_ends(trace: Trace, launch: Integers) -> Integers:
    """What began before anything whose launch is known was launched before the trace."""
    work, launches = trace.work, trace.launches
    ends = np.where(launch >= 0, np.minimum(take(launches.end, launch), work.start), NONE)
    known = launch >= 0
    if not known.any():
        return ends
    early = ~known & (work.start < work.start[known].min())
    begin = min(int(work.start.min()), int(launches.start.min()))
    ends = np.where(early, begin, ends)
    return np.where(~known & ~early, work.start, ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSegments:
    """Times in which an event was the innermost of its thread."""

    start: Integers
    end: Integers
    event: Integers


def list_segments(host: Host) -> HostSegments:
    order = np.lexsort((-host.end, host.start, host.thread))
    starts, ends = host.start.tolist(), host.end.tolist()
    threads = host.thread.tolist()
    rows: list[tuple[int, int, int]] = []
    reached: dict[int, int] = {}
    """By thread, up to where its time has been given away."""
    stack: list[int] = []

    def leave(until: int) -> None:
        while stack and ends[stack[-1]] <= until:
            top = stack.pop()
            cursor = reached[threads[top]]
            if ends[top] > cursor:
                rows.append((cursor, ends[top], top))
                reached[threads[top]] = ends[top]

    thread = NONE
    for place in order.tolist():
        if threads[place] != thread:
            leave(2**63)
            stack.clear()
            thread = threads[place]
            reached[thread] = starts[place]
        begun = starts[place]
        leave(begun)
        if stack and begun > reached[thread]:
            rows.append((reached[thread], begun, stack[-1]))
        reached[thread] = max(reached[thread], begun)
        stack.append(place)
    leave(2**63)
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return HostSegments(start=table[:, 0], end=table[:, 1], event=table[:, 2])


def find_host_kinds(trace: Trace, tree: HostTree) -> Integers:
    """Of each event on the host, what its own time is; NONE where it does no operation."""
    names = take(trace.host.name, tree.operator).tolist()
    data = CODES["waiting for data"]
    known: dict[tuple[int, int], int] = {}
    kinds = []
    for key in zip(names, tree.scope.tolist(), strict=True):
        if key not in known:
            name, code = key
            scope = None if code == NONE else KINDS[code]
            own = NONE if name == NONE else CODES[find_scoped_kind(trace.names[name], scope)]
            known[key] = data if code == data else own
        kinds.append(known[key])
    return np.array(kinds, dtype=np.int64)
