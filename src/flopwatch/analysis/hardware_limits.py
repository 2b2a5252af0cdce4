"""What the hardware of a record allows, and how close phases and regions came to it (roofline).

Peaks that were measured on the machine come first, and nominal ones stand in where only those are
known. Devices of a job count together; on a CPU all ranks share one machine.

The roof of an operation is min(peak, bandwidth times FLOPs for each byte). Bytes are those that the
suite declares, or else the least that matmuls must move, from dimensions: operands and results
once, nothing between (`jobs.flops`). A cache may hold some of them, so that little work can be
faster than its roof of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flopwatch.analysis.part_times import find_bits, scale_phases, scale_regions
from flopwatch.analysis.record_device import (
    count_devices,
    count_ranks,
    describe_missing_peak,
    find_device_name,
    find_record_device,
    name_arithmetic,
)
from flopwatch.analysis.record_job import Layer, Subject, name_recorded, read_subject
from flopwatch.devices.device_table import DTYPES, Device
from flopwatch.devices.kinds import HOST
from flopwatch.devices.measured_peaks import Kernel, Peaks, from_environment
from flopwatch.errors import UsageError
from flopwatch.jobs.flops import (
    FORWARD_BACKWARD,
    GRAD_ACCUM,
    OPTIMIZER_FLOPS,
    Passes,
    count_bytes_by_part,
)
from flopwatch.jobs.parameters import Part
from flopwatch.jobs.precision import Peak
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.calibration import make_stack
from flopwatch.prediction.hardware import (
    Machine,
    describe_device,
    describe_measured,
    is_rate,
    share_among,
)
from flopwatch.prediction.job_arrays import UPDATE_PASSES
from flopwatch.prediction.software_stacks import OLD, Parameters, choose_stack, find_stack
from flopwatch.records.record import Record

GB = 1e9
OPTIMIZER = "optimizer"
"""The phase."""
FITTED = "published:mosaic"
"""The run of the records that the stack OLD was fitted to."""
REGIONS: Mapping[str, tuple[Part, ...]] = {
    "attention": ("qkv", "scores", "values", "output"),
    "feed-forward": ("feed-forward",),
    "head": ("head", "padding"),
}
"""What regions of our own transformer hold."""
REMEDY = "run `flopwatch peaks`, then measure again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidth:
    bytes_per_s: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    peaks: Mapping[str, Peak]
    """By arithmetic (tf32 is one of its own), of all devices together."""
    bandwidth: Bandwidth | None
    """Of their memory; None: not known."""
    machine: Machine | None
    """What one rank has, for the cost model; None: not known."""
    parameters: Parameters
    stack: str
    """Whose parameters those are."""

    def find_wider(self, arithmetic: str) -> tuple[str, Peak] | None:
        """Wider numbers whose matmuls are faster: those of `arithmetic` are emulated then."""
        own = self.peaks.get(arithmetic)
        wider = [
            (name, peak)
            for name, peak in self.peaks.items()
            if own is not None
            and find_bits(name) > find_bits(arithmetic)
            and peak.flops_per_s > own.flops_per_s
        ]
        return max(wider, key=lambda one: one[1].flops_per_s, default=None)


NOTHING = Limits(
    peaks={},
    bandwidth=None,
    machine=None,
    # A record does not carry what `flopwatch calibrate` has found; it has to stand alone.
    parameters=make_stack(None, HOST).parameters,
    stack="",
)
"""Where nothing is known."""


def find_limits(record: Record) -> Limits:
    measured, device = from_environment(record.environment), find_record_device(record)
    devices = count_devices(record)
    nominal = None if device is None else _describe(device)
    machine = None if measured is None else describe_measured(measured, None)
    machine = machine or nominal
    stack = None
    if record.run_id == FITTED:
        stack = find_stack(OLD)
    elif nominal is not None:
        stack = choose_stack(nominal)
    shared_by = count_ranks(record) // devices
    return Limits(
        peaks=_find_peaks(measured, device, devices),
        bandwidth=_find_bandwidth(measured, device, devices),
        machine=machine if machine is None or shared_by == 1 else share_among(machine, shared_by),
        parameters=(stack or make_stack(None, record.settings.device)).parameters,
        stack="expected ones, not fitted here" if stack is None else stack.name,
    )


def describe_missing(record: Record, limits: Limits, dtypes: Iterable[str]) -> list[str]:
    """What is not known of the machine, and what to do about it; a sentence at most."""
    unknown = [name for name in dtypes if name_arithmetic(record, name) not in limits.peaks]
    if "unknown" in unknown:  # a dtype that others did not publish
        return ["in which dtype it was computed is not stated, so that no peak can be compared"]
    if unknown:
        reason = f"no peak in {unknown[0]} was known when this was measured"
        if find_device_name(record) is not None:
            reason = describe_missing_peak(record, unknown[0]).partition(";")[0]
        return [f"{reason}: {REMEDY}, and matmuls have rows"]
    if limits.bandwidth is None:
        return [
            f"no bandwidth of memory was known when this was measured: {REMEDY}, and memory has "
            "rows"
        ]
    return []


def _find_peaks(measured: Peaks | None, device: Device | None, devices: int) -> dict[str, Peak]:
    found = {}
    for dtype in DTYPES:
        peak = None if measured is None else measured.find_peak(dtype)
        if peak is None and device is not None:
            peak = device.find_peak(dtype)
        if peak is not None and is_rate(peak.flops_per_s):
            found[dtype] = replace(peak, flops_per_s=peak.flops_per_s * devices)
    return found


def _find_bandwidth(
    measured: Peaks | None, device: Device | None, devices: int
) -> Bandwidth | None:
    kernels: tuple[Kernel, ...] = ("read", "copy", "triad")
    streams = [] if measured is None else [measured.find_bandwidth(kernel) for kernel in kernels]
    known = [s for s in streams if s is not None and is_rate(s.bytes_per_s)]
    if known:
        best = max(known, key=lambda stream: stream.bytes_per_s)
        return Bandwidth(
            bytes_per_s=best.bytes_per_s * devices, source=f"measured here: {best.kernel}"
        )
    figure = None if device is None else device.bandwidth_gb_per_s
    if figure is None:
        return None
    return Bandwidth(bytes_per_s=figure.value * GB * devices, source=figure.source)


def _describe(device: Device) -> Machine | None:
    try:
        return describe_device(device)
    except UsageError:  # its bandwidth is not known
        return None


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


def place_operations(record: Record, total_ns: float, limits: Limits) -> list[Operation]:
    """Those whose FLOPs, bytes and time are known: phases first, then regions."""
    if limits.bandwidth is None:
        return []
    regions_ns = scale_regions(record, total_ns)
    times_ns = {
        **scale_phases(record, total_ns),
        **{name: time_ns for name, time_ns in regions_ns.items() if "/" in name},
    }
    sizes = count_bytes(record)
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


def count_bytes(record: Record) -> dict[str, float]:
    """That must be moved, by phase and region: as the suite declares them, else what follows from
    the training job or the layer."""
    return {**dict(_count_bytes(record, read_subject(record))), **record.bytes}


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
    # What other layers in a model must move is not known here.
    if isinstance(subject, TrainingJob) and subject.is_dense:
        yield from _count_step_bytes(subject)


def _count_step_bytes(job: TrainingJob) -> Iterator[tuple[str, float]]:
    """Of our own transformer."""
    moved = count_bytes_by_part(name_recorded(job))
    forward, backward = (_sum(moved, tuple(moved), phase) for phase in ("forward", "backward"))
    data = job.parallelism.data
    if job.parallelism.pipeline > 1:
        yield FORWARD_BACKWARD, job.micro_batches * (forward + backward)
        return
    yield "forward", data * forward
    yield "backward", data * backward
    if job.grad_accum > 1:
        yield GRAD_ACCUM, data * (job.grad_accum - 1) * (forward + backward)
    for region, parts in REGIONS.items():
        for phase in ("forward", "backward"):
            yield f"{phase}/{region}", data * _sum(moved, parts, phase)


def _sum(moved: Mapping[Part, Passes], parts: tuple[Part, ...], phase: str) -> float:
    if phase == "forward":
        return float(sum(moved[part].forward for part in parts))
    return float(sum(moved[part].backward + moved[part].recomputed for part in parts))


def count_update_bytes(record: Record, subject: Subject | None) -> float | None:
    """That the optimizer must read and write, of all copies of parameters; None: not known."""
    flops = sum(record.flops.get(OPTIMIZER, {}).values())
    if (
        not isinstance(subject, TrainingJob)
        or not flops
        or subject.optimizer not in OPTIMIZER_FLOPS
    ):
        return None
    updated = flops / OPTIMIZER_FLOPS[subject.optimizer]
    return UPDATE_PASSES[subject.optimizer] * updated * subject.arithmetic.parameter_bytes
