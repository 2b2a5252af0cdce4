"""What the hardware of a record allows: arithmetic, memory, and what the cost model makes of both.

Peaks that were measured on the machine come first, and nominal ones stand in where only those are
known. Devices of a job count together; on a CPU all ranks share one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flopwatch.analysis.record_device import (
    count_devices,
    count_ranks,
    describe_missing_peak,
    find_device_name,
    find_record_device,
    name_arithmetic,
)
from flopwatch.analysis.region_times import find_bits
from flopwatch.devices.device_table import DTYPES, Device
from flopwatch.devices.measured_peaks import Kernel, Peaks, from_environment
from flopwatch.errors import UsageError
from flopwatch.jobs.precision import Peak
from flopwatch.prediction.calibration import make_stack
from flopwatch.prediction.fit import OLD
from flopwatch.prediction.hardware import (
    Machine,
    describe_device,
    describe_measured,
    is_rate,
    share_among,
)
from flopwatch.prediction.software_stacks import Parameters, Stack, choose_stack, find_stack
from flopwatch.records.record import Record

GB = 1e9
FITTED = "published:mosaic"
"""The run of the records that the stack OLD was fitted to."""
REMEDY = "run `flopwatch peaks`, then measure again"
ON_A_CPU = make_stack(None, "cpu").parameters
"""A record does not carry what `flopwatch calibrate` has found; it has to stand alone."""


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
    parameters=ON_A_CPU,
    stack="",
)
"""Where nothing is known."""


def find_limits(record: Record) -> Limits:
    measured, device = from_environment(record.environment), find_record_device(record)
    devices = count_devices(record)
    machine = _find_machine(measured, device)
    shared_by = count_ranks(record) // devices
    stack = None if device is None or machine is None else _choose_stack(record, device)
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


def _find_machine(measured: Peaks | None, device: Device | None) -> Machine | None:
    found = None if measured is None else describe_measured(measured, None)
    if found is not None or device is None:
        return found
    try:
        return describe_device(device)
    except UsageError:  # its bandwidth is not known
        return None


def _choose_stack(record: Record, device: Device) -> Stack | None:
    if record.run_id == FITTED:
        return find_stack(OLD)
    try:
        return choose_stack(describe_device(device))
    except UsageError:
        return None
