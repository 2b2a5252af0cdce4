"""A trace, explained: its steps, the whole, and the kernels and operators in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flopwatch.lazy import LazyModule
from flopwatch.traces.attribution import CODES
from flopwatch.traces.kernel_summary import KernelUse, OperatorUse, summarize_kernels
from flopwatch.traces.operation_kinds import Kind
from flopwatch.traces.trace_breakdown import (
    WHOLE,
    AttributedTrace,
    Breakdown,
    add_up,
    attribute_trace,
    break_down,
)
from flopwatch.traces.trace_events import NONE, Trace
from flopwatch.traces.trace_files import Report, TraceError
from flopwatch.traces.trace_reader import read_trace

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

OUTSIDE = 0.1
"""The share of all that ran, from which on it is said how much was in no step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One kernel of communication."""

    name: str
    group: str | None
    """The ranks of its process group, as they were recorded; None: they were not."""
    time_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedTrace:
    file: str
    rank: int | None
    world_size: int | None
    device: str | None
    """As its driver names it; None: not recorded, or nothing ran on a device."""
    is_of_device: bool
    steps: Sequence[Breakdown]
    """Of the profiler; none where none were marked."""
    whole: Breakdown
    """From the first to the last thing that ran."""
    kernels: Sequence[KernelUse]
    """In all steps, the longest first; on a host, operators."""
    operators: Sequence[OperatorUse]
    collectives: Sequence[Collective]
    remarks: Sequence[str]

    @property
    def count(self) -> int:
        """Of steps; without any the whole is one."""
        return max(len(self.steps), 1)

    @property
    def total(self) -> Breakdown:
        """Of all steps together."""
        return add_up(self.steps, "steps") if self.steps else self.whole

    @property
    def step_ns(self) -> float:
        return self.total.total_ns / self.count

    @property
    def mean_rows_ns(self) -> Mapping[Kind, float]:
        """Of an average step."""
        return {kind: time / self.count for kind, time in self.total.rows.items()}

    @property
    def label(self) -> str:
        name = Path(self.file).name
        return name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace") or name


def explain_trace(path: Path, report: Report = lambda _: None) -> ExplainedTrace:
    trace = read_trace(path, report)
    attributed = attribute_trace(trace)
    steps, whole = break_down(attributed)
    if not whole.total_ns:
        raise TraceError(f"{path} has events, but all of them take no time; record it again")
    first, last = (steps[0], steps[-1]) if steps else (whole, whole)
    start, end = first.start_ns, last.start_ns + last.total_ns
    kernels, operators = summarize_kernels(attributed, start, end)
    return ExplainedTrace(
        file=trace.file,
        rank=trace.rank,
        world_size=trace.world_size,
        device=_find_device_name(trace, attributed.device),
        is_of_device=trace.is_of_device,
        steps=steps,
        whole=whole,
        kernels=kernels,
        operators=operators,
        collectives=_list_collectives(attributed, start, end),
        remarks=[*trace.remarks, *_list_remarks(attributed, steps, whole)],
    )


def _find_device_name(trace: Trace, device: int) -> str | None:
    """Of a job, all devices are usually the same; numbers may be others than the properties'."""
    if not trace.is_of_device:
        return None
    names = set(trace.device_names.values())
    return trace.device_names.get(device) or (names.pop() if len(names) == 1 else None)


def _list_collectives(attributed: AttributedTrace, start: int, end: int) -> list[Collective]:
    """Of kernels, in the order in which they began."""
    if attributed.work is None:
        return []
    work, names = attributed.trace.work, attributed.trace.names
    is_wanted = (attributed.work.kind == CODES["communication"]) & attributed.is_chosen
    at = np.flatnonzero(is_wanted & (work.start >= start) & (work.start < end))
    at = at[np.argsort(work.start[at], kind="stable")]
    return [
        Collective(
            name=names[int(work.name[place])],
            group=None if work.group[place] == NONE else names[int(work.group[place])],
            time_ns=int(work.end[place] - work.start[place]),
        )
        for place in at.tolist()
    ]


def _list_remarks(
    attributed: AttributedTrace, steps: Sequence[Breakdown], whole: Breakdown
) -> list[str]:
    remarks = []
    devices = np.unique(attributed.trace.work.device)
    if len(devices) > 1:
        remarks.append(
            f"the trace has work of {len(devices)} devices; this is device {attributed.device}, "
            "the busiest"
        )
    if not steps:
        remarks.append(
            "no steps are marked, so that the whole trace is one; give the profiler a schedule, "
            "and call profiler.step() after each step"
        )
    elif attributed.work is not None:
        outside = _find_outside(steps, whole)
        if outside > OUTSIDE:
            remarks.append(
                f"{100 * outside:.0f} % of the {WHOLE} lie outside of its steps, and do not count"
            )
    return remarks


def _find_outside(steps: Sequence[Breakdown], whole: Breakdown) -> float:
    begin, end = steps[0].start_ns, steps[-1].start_ns + steps[-1].total_ns
    early = max(0, begin - whole.start_ns)
    late = max(0, whole.start_ns + whole.total_ns - end)
    return (early + late) / whole.total_ns
