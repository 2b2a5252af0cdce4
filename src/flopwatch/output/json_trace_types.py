"""What `flopwatch explain` prints of traces with ``--json``, as types."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from flopwatch.output.json_types import Base
from flopwatch.traces.kernel_summary import KernelUse, OperatorUse
from flopwatch.traces.operation_kinds import Kind
from flopwatch.traces.trace_breakdown import Breakdown
from flopwatch.traces.trace_comparison import MovedWork


class TraceRow(TypedDict):
    """Of an average step."""

    kind: Kind
    time_ns: float
    share: float


class TraceBreakdown(TypedDict):
    computing_ns: int
    communication_ns: int
    """Exposed and overlapped."""


class TraceKernel(TypedDict):
    flops_per_s: float | None
    limit_flops_per_s: float | None
    """The device's peak, or its bandwidth times FLOPs for each byte, whichever is less."""
    share_of_limit: float | None
    bound: Literal["compute", "memory"] | None


class TracedRank(TypedDict):
    file: str
    rank: int | None
    world_size: int | None
    device: str | None
    """As its driver names it."""
    is_of_device: bool
    """False where nothing ran on a device, and operators of the host are counted."""
    step_ns: float
    """Of an average step."""
    rows: list[TraceRow]
    """They add up to the step."""
    overlapped_ns: float
    """Communication while something is computed, which is in the rows of that."""
    steps: list[TraceBreakdown]
    whole: TraceBreakdown
    """From the first to the last thing that ran."""
    kernels: list[TraceKernel]
    """Of all steps together, the longest first."""
    operators: list[OperatorUse]
    remarks: list[str]


class RankWaits(TypedDict):
    rank: int
    waiting_ns: float | None
    """In collectives of an average step, for other ranks."""
    caused_ns: float | None
    """What the others waited for it on average, where it came last."""
    last_in: int


class TracedJob(TypedDict):
    collectives: int
    straggler: int | None
    """The rank that the others wait for."""
    ranks: list[RankWaits]


class TraceExplanation(TypedDict):
    traces: list[TracedRank]
    ranks: TracedJob | None


class TraceMove(TypedDict):
    change_ns: float
    ratio: float | None


class TraceChange(TypedDict):
    old: TracedRank
    new: TracedRank
    change_ns: float
    rows: list[TraceMove]
    """By kind of work; their changes add up to that of the step."""
    operators: list[TraceMove]


BASES: dict[Any, Base] = {
    TraceBreakdown: (Breakdown, ()),
    TraceKernel: (KernelUse, ()),
    TraceMove: (MovedWork, ()),
}
