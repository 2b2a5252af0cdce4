"""Kernels and operators by name: calls, time, and what they reach of the hardware's limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flopwatch.analysis.hardware_limits import GB, Operation
from flopwatch.devices.device_names import find_device
from flopwatch.devices.device_table import Device
from flopwatch.lazy import LazyModule
from flopwatch.traces.attribution import CODES, take
from flopwatch.traces.flop_counts import Work, count_work, name_arithmetic
from flopwatch.traces.operation_kinds import KINDS, Kind
from flopwatch.traces.trace_breakdown import AttributedTrace
from flopwatch.traces.trace_events import NONE

if TYPE_CHECKING:
    import numpy as np

    from flopwatch.traces.trace_events import Integers
else:
    np = LazyModule("numpy")

VIRTUAL = " VF"
"""Behind the name of a GPU that a virtual machine has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelUse:
    """All calls of a kernel, or on a host of an operator."""

    name: str
    kind: Kind
    operator: str | None
    """The one that launched most of it."""
    calls: int
    time_ns: int
    flops: float | None = None
    """Of the calls whose shapes are known; None: of none."""
    flops_ns: int = 0
    """What those calls took."""
    size_bytes: float = 0.0
    """The least that they must move."""
    arithmetic: str | None = None

    @property
    def flops_per_s(self) -> float | None:
        return None if not self.flops or not self.flops_ns else self.flops / self.flops_ns * 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorUse:
    """All that operators of one name have launched of one kind of work."""

    name: str
    kind: Kind
    calls: int
    """Kernels, or on a host the operator's own."""
    time_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Uses:
    """Work in a time, one row each; names, operators and shapes are places in tables."""

    name: Integers
    kind: Integers
    time: Integers
    operator: Integers
    shaped: Integers
    call: Integers
    """1 where it is a call of its own, 0 where it continues one."""


def summarize_kernels(
    attributed: AttributedTrace, start: int, end: int
) -> tuple[list[KernelUse], list[OperatorUse]]:
    """What began in a time, the longest first: kernels, and the operators behind them."""
    uses = _list_uses(attributed, start, end)
    kernels = sorted(_list_kernels(attributed, uses), key=lambda use: (-use.time_ns, use.name))
    operators = sorted(_list_operators(attributed, uses), key=lambda use: (-use.time_ns, use.name))
    return kernels, operators


def _list_uses(attributed: AttributedTrace, start: int, end: int) -> _Uses:
    trace = attributed.trace
    if attributed.work is None:
        return _list_host_uses(attributed, start, end)
    work = trace.work
    at = np.flatnonzero(attributed.is_chosen & (work.start >= start) & (work.start < end))
    return _Uses(
        name=work.name[at],
        kind=attributed.work.kind[at],
        time=work.end[at] - work.start[at],
        operator=take(trace.host.name, attributed.work.operator[at]),
        shaped=attributed.work.shaped[at],
        call=np.ones(len(at), dtype=np.int64),
    )


def _list_host_uses(attributed: AttributedTrace, start: int, end: int) -> _Uses:
    names, segments = attributed.trace.host.name, attributed.segments
    assert segments is not None
    kinds = attributed.host_kinds[segments.event]
    at = np.flatnonzero((segments.start >= start) & (segments.start < end) & (kinds != NONE))
    events = segments.event[at]
    around = attributed.tree.operator[events]
    operators = np.where(around >= 0, around, events)  # the data loader's own time is in none
    is_first = np.zeros(len(at), dtype=np.int64)
    is_first[np.unique(operators, return_index=True)[1]] = 1
    return _Uses(
        name=names[operators],
        kind=kinds[at],
        time=segments.end[at] - segments.start[at],
        operator=names[operators],
        shaped=attributed.tree.shaped[events],
        call=is_first,
    )


def _group(keys: tuple[Integers, ...]) -> tuple[Integers, Integers]:
    """The first row of each group, and the group of each row."""
    table = np.stack(keys, axis=1)
    _, first, group = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, group.reshape(-1)


def _add_up(group: Integers, values: Integers) -> Integers:
    return np.bincount(group, weights=values).astype(np.int64)


def _list_kernels(attributed: AttributedTrace, uses: _Uses) -> Iterator[KernelUse]:
    if not len(uses.name):
        return
    names = attributed.trace.names
    first, group = _group((uses.name, uses.kind))
    calls, times = (_add_up(group, each) for each in (uses.call, uses.time))
    operators = _find_main_operators(uses, group, len(first))
    counted = _count_flops(attributed, uses, group)
    for place, row in enumerate(first.tolist()):
        operator = operators[place]
        use = KernelUse(
            name=names[int(uses.name[row])],
            kind=KINDS[int(uses.kind[row])],
            operator=None if operator == NONE else names[operator],
            calls=int(calls[place]),
            time_ns=int(times[place]),
        )
        yield _add_flops(use, *counted[place]) if place in counted else use


def _find_main_operators(uses: _Uses, group: Integers, size: int) -> list[int]:
    """Of each group, the operator with the most time."""
    first, pair = _group((group, uses.operator))
    times = _add_up(pair, uses.time).tolist()
    found = [NONE] * size
    most = [NONE] * size
    for place, row in enumerate(first.tolist()):
        at = int(group[row])
        if times[place] > most[at]:
            most[at], found[at] = times[place], int(uses.operator[row])
    return found


def _count_flops(
    attributed: AttributedTrace, uses: _Uses, group: Integers
) -> dict[int, tuple[float, float, int, str]]:
    """By group: FLOPs, bytes and time of calls with shapes, and their dtype. Of the kernels of one
    operator the longest has all its FLOPs."""
    computing = np.isin(uses.kind, [CODES["matmul"], CODES["attention"], CODES["optimizer"]])
    rows = np.flatnonzero((uses.shaped >= 0) & computing)
    if not len(rows):
        return {}
    order = rows[np.lexsort((uses.time[rows], uses.shaped[rows]))]
    shaped = uses.shaped[order]
    longest = order[np.append(shaped[1:] != shaped[:-1], True)]
    host, known = attributed.trace.host, {}
    found: dict[int, tuple[float, float, int, str]] = {}
    for row in longest.tolist():
        event = int(uses.shaped[row])
        key = int(host.name[event]), int(host.shape[event])
        if key not in known:
            known[key] = count_work(attributed.trace.names[key[0]], attributed.trace.shapes[key[1]])
        work: Work | None = known[key]
        if work is not None:
            at = int(group[row])
            flops, size, time, dtype = found.get(at, (0.0, 0.0, 0, work.dtype))
            found[at] = (
                flops + work.flops, size + work.size_bytes, time + int(uses.time[row]), dtype
            )  # fmt: skip
    return found


def _add_flops(use: KernelUse, flops: float, size: float, time: int, dtype: str) -> KernelUse:
    return replace(
        use,
        flops=flops,
        flops_ns=time,
        size_bytes=size,
        arithmetic=name_arithmetic(dtype, use.name),
    )


def _list_operators(attributed: AttributedTrace, uses: _Uses) -> Iterator[OperatorUse]:
    if not len(uses.name):
        return
    names = attributed.trace.names
    first, group = _group((uses.operator, uses.kind))
    calls, times = (_add_up(group, each) for each in (uses.call, uses.time))
    for place, row in enumerate(first.tolist()):
        operator = int(uses.operator[row])
        yield OperatorUse(
            name="(unknown)" if operator == NONE else names[operator],
            kind=KINDS[int(uses.kind[row])],
            calls=int(calls[place]),
            time_ns=int(times[place]),
        )


def find_trace_device(name: str | None) -> Device | None:
    """The device of our table that a driver has this name for."""
    return None if name is None else find_device(name) or find_device(name.removesuffix(VIRTUAL))


def place_kernel(use: KernelUse, device: Device | None) -> Operation | None:
    """Against the limits of the device; None where something is not known."""
    if device is None or device.bandwidth_gb_per_s is None or not use.flops or not use.flops_ns:
        return None
    peak = device.find_peak(use.arithmetic or "")
    if peak is None:
        return None
    return Operation(
        name=use.name,
        time_ns=use.flops_ns,
        flops=use.flops,
        size_bytes=use.size_bytes,
        peak_flops_per_s=peak.flops_per_s,
        bandwidth_bytes_per_s=device.bandwidth_gb_per_s.value * GB,
    )
