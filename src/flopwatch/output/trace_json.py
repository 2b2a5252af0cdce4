"""Explained traces as JSON; `json_trace_types` has the types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flopwatch.analysis.hardware_limits import Operation
from flopwatch.traces.explained_trace import ExplainedTrace
from flopwatch.traces.kernel_summary import KernelUse, find_trace_device, place_kernel
from flopwatch.traces.rank_traces import RankComparison
from flopwatch.traces.trace_breakdown import Breakdown
from flopwatch.traces.trace_comparison import MovedWork, TraceComparison


def as_dict(trace: ExplainedTrace) -> dict[str, Any]:
    """For ``--json``."""
    device = find_trace_device(trace.device)
    return {
        "file": trace.file,
        "rank": trace.rank,
        "world_size": trace.world_size,
        "device": trace.device,
        "is_of_device": trace.is_of_device,
        "step_ns": trace.step_ns,
        "rows": [
            {"kind": kind, "time_ns": time, "share": time / trace.step_ns}
            for kind, time in trace.mean_rows_ns.items()
        ],
        "overlapped_ns": trace.total.overlapped_ns / trace.count,
        "steps": [_breakdown_as_dict(step) for step in trace.steps],
        "whole": _breakdown_as_dict(trace.whole),
        "kernels": [_kernel_as_dict(use, place_kernel(use, device)) for use in trace.kernels],
        "operators": [asdict(use) for use in trace.operators],
        "remarks": list(trace.remarks),
    }


def _breakdown_as_dict(one: Breakdown) -> dict[str, Any]:
    return {
        **asdict(one),
        "computing_ns": one.computing_ns,
        "communication_ns": one.communication_ns,
    }


def _kernel_as_dict(use: KernelUse, operation: Operation | None) -> dict[str, Any]:
    limits: Mapping[str, Any] = {
        "limit_flops_per_s": operation and operation.limit_flops_per_s,
        "share_of_limit": operation and operation.share,
        "bound": operation and operation.bound,
    }
    return {**asdict(use), "flops_per_s": use.flops_per_s, **limits}


def ranks_as_dict(found: RankComparison) -> dict[str, Any]:
    late = found.straggler
    return {
        "collectives": found.collectives,
        "straggler": None if late is None else late.rank,
        "ranks": [
            {
                "rank": share.rank,
                "waiting_ns": share.waiting_ns,
                "caused_ns": share.caused_ns,
                "last_in": share.last_in,
            }
            for share in found.ranks
        ],
    }


def explained_as_dict(
    traces: Sequence[ExplainedTrace], ranks: RankComparison | None
) -> dict[str, Any]:
    return {
        "traces": [as_dict(trace) for trace in traces],
        "ranks": None if ranks is None else ranks_as_dict(ranks),
    }


def comparison_as_dict(found: TraceComparison) -> dict[str, Any]:
    def moved(row: MovedWork) -> dict[str, Any]:
        return {**asdict(row), "change_ns": row.change_ns, "ratio": row.ratio}

    return {
        "old": as_dict(found.old),
        "new": as_dict(found.new),
        "change_ns": found.change_ns,
        "rows": [moved(row) for row in found.rows],
        "operators": [moved(row) for row in found.operators],
    }
