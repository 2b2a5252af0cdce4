"""Phases and regions of a run against their roofs: min(peak, bandwidth times FLOPs for each byte).

Bytes are those that the suite declares, or else the least that matmuls must move, from dimensions:
operands and results once, nothing between (`jobs.flops`). A cache may hold some of them, so that
little work can be faster than its roof of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from flopwatch.analysis.hardware_limits import Limits
from flopwatch.analysis.record_device import name_arithmetic
from flopwatch.analysis.record_job import Layer, Subject, name_recorded, read_subject
from flopwatch.analysis.step_breakdown import (
    OPTIMIZER,
    StepBreakdown,
    count_update_bytes,
    scale_phases,
    scale_regions,
)
from flopwatch.jobs.flops import GRAD_ACCUM, Part, Passes, count_bytes_by_part
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.records.record import Record

REGIONS: Mapping[str, tuple[Part, ...]] = {
    "attention": ("qkv", "scores", "values", "output"),
    "feed-forward": ("feed-forward",),
    "head": ("head", "padding"),
}
"""What regions of our own transformer hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """A phase, or a region as ``phase/region``."""

    name: str
    time_ns: float
    flops: float
    size_bytes: float
    peak_flops_per_s: float
    """Of its arithmetic."""
    bandwidth_bytes_per_s: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.size_bytes

    @property
    def reached_flops_per_s(self) -> float:
        return self.flops / self.time_ns * 1e9

    @property
    def limit_flops_per_s(self) -> float:
        return min(self.peak_flops_per_s, self.bandwidth_bytes_per_s * self.intensity)

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.reached_flops_per_s / self.limit_flops_per_s

    @property
    def bound(self) -> Literal["compute", "memory"]:
        is_fed = self.bandwidth_bytes_per_s * self.intensity >= self.peak_flops_per_s
        return "compute" if is_fed else "memory"


def place_operations(breakdown: StepBreakdown) -> list[Operation]:
    """Those whose FLOPs, bytes and time are known: phases first, then regions."""
    record, limits = breakdown.record, breakdown.limits
    if limits.bandwidth is None:
        return []
    regions_ns = scale_regions(record, breakdown.total_ns)
    times_ns = {
        **scale_phases(record, breakdown.total_ns),
        **{name: time_ns for name, time_ns in regions_ns.items() if "/" in name},
    }
    sizes = {**dict(_count_bytes(record, read_subject(record))), **record.bytes}
    placed = []
    for name, time_ns in times_ns.items():
        flops, peak = _find_peak(record, limits, name)
        if flops and peak and sizes.get(name) and time_ns > 0:
            placed.append(
                Operation(
                    name=name,
                    time_ns=time_ns,
                    flops=flops,
                    size_bytes=sizes[name],
                    peak_flops_per_s=peak,
                    bandwidth_bytes_per_s=limits.bandwidth.bytes_per_s,
                )
            )
    return placed


def _find_peak(record: Record, limits: Limits, name: str) -> tuple[float, float | None]:
    """FLOPs of an operation, and the rate at which all its dtypes together are at their peaks;
    where wider arithmetic is faster, at its peak."""
    flops = {dtype: count for dtype, count in record.flops.get(name, {}).items() if count}
    at_peak_s = 0.0
    for dtype, count in flops.items():
        arithmetic = name_arithmetic(record, dtype)
        wider = limits.find_wider(arithmetic)
        peak = limits.peaks.get(arithmetic) if wider is None else wider[1]
        if peak is None:
            return 0.0, None
        at_peak_s += count / peak.flops_per_s
    total = sum(flops.values())
    return total, total / at_peak_s if at_peak_s else None


def _count_bytes(record: Record, subject: Subject | None) -> Iterator[tuple[str, float]]:
    """By phase and region."""
    update_bytes = count_update_bytes(record, subject)
    if update_bytes is not None:
        yield OPTIMIZER, update_bytes
    if isinstance(subject, Layer) and subject.is_plain:
        tokens, inputs, outputs = subject.tokens, subject.inputs, subject.outputs
        weights = subject.density * inputs * outputs
        once = tokens * inputs + weights + tokens * outputs
        yield "forward", subject.element_bytes * once
        # It reads inputs, weights and the gradient of the result, and writes two gradients.
        back = 2 * tokens * inputs + 2 * weights + tokens * outputs
        yield "backward", subject.element_bytes * back
    # What other layers in a model must move is theirs to tell.
    if isinstance(subject, TrainingJob) and subject.is_dense:
        yield from _count_step_bytes(subject)


def _count_step_bytes(job: TrainingJob) -> Iterator[tuple[str, float]]:
    moved = count_bytes_by_part(name_recorded(job))
    forward, backward = (_sum(moved, tuple(moved), phase) for phase in ("forward", "backward"))
    yield "forward", job.ranks * forward
    yield "backward", job.ranks * backward
    if job.grad_accum > 1:
        yield GRAD_ACCUM, job.ranks * (job.grad_accum - 1) * (forward + backward)
    for region, parts in REGIONS.items():
        for phase in ("forward", "backward"):
            yield f"{phase}/{region}", job.ranks * _sum(moved, parts, phase)


def _sum(moved: Mapping[Part, Passes], parts: tuple[Part, ...], phase: str) -> float:
    if phase == "forward":
        return float(sum(moved[part].forward for part in parts))
    return float(sum(moved[part].backward + moved[part].recomputed for part in parts))
