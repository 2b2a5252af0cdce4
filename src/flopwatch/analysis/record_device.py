"""Where a record's matmuls were computed: on what device, in what arithmetic, of what peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from flopwatch.devices.device_names import find_device
from flopwatch.devices.device_table import SPELLINGS, Device
from flopwatch.devices.environment import look_up
from flopwatch.devices.measured_peaks import from_environment
from flopwatch.jobs.precision import Peak
from flopwatch.records.record import Record

Standard = Literal["nominal", "measured"]
FindPeak = Callable[[str], Peak | None]


def find_device_name(record: Record) -> str | None:
    """As the driver reports it; None where a CPU was measured."""
    name = look_up(record.environment, "torch.gpu.name")
    return str(name) if record.settings.device == "cuda" and name else None


def find_record_device(record: Record) -> Device | None:
    """None where it is not in the table of devices, as no CPU is."""
    name = find_device_name(record)
    return None if name is None else find_device(name)


def count_ranks(record: Record) -> int:
    ranks = record.params.get("ranks", 1)
    return ranks if isinstance(ranks, int) and ranks >= 1 else 1  # an axis of somebody's own


def count_devices(record: Record) -> int:
    """A rank has a GPU of its own; on a CPU all ranks share the threads."""
    return count_ranks(record) if record.settings.device == "cuda" else 1


def name_arithmetic(record: Record, dtype: str) -> str:
    """What peaks call it: a GPU may be told to round the matmuls of float32."""
    if dtype == "float32" and record.settings.device == "cuda":
        rounds = look_up(record.environment, "torch.gpu.tf32_matmul") is True
        return "tf32" if rounds else "float32"
    return SPELLINGS.get(dtype, dtype)


def list_standards(record: Record) -> dict[Standard, FindPeak]:
    """How to find the peak of one device for a dtype; the nominal one first."""
    device, measured = find_record_device(record), from_environment(record.environment)
    nominal: dict[Standard, FindPeak] = {} if device is None else {"nominal": device.find_peak}
    return nominal if measured is None else {**nominal, "measured": measured.find_peak}


def find_rank_peak(record: Record, dtype: str) -> Peak | None:
    """What one rank can have: the nominal peak, or where that is not known, the measured one."""
    found = [find(dtype) for find in list_standards(record).values()]
    peak = next((peak for peak in found if peak is not None), None)
    shared_by = count_ranks(record) // count_devices(record)
    if peak is None or shared_by == 1:
        return peak
    return replace(
        peak,
        flops_per_s=peak.flops_per_s / shared_by,
        source=f"{peak.source}, of which each of {shared_by} ranks has 1/{shared_by}",
    )


def describe_missing_peak(record: Record, dtype: str | None) -> str:
    """Why a record has no peak in that dtype, None if it does not say in which, and what to do."""
    if dtype is None:
        return (
            f"precision {record.params.get('precision')!r} is not known here, nor is its peak; "
            "give that to flopwatch mfu by --peak, in TFLOP/s of one device"
        )
    name, device = find_device_name(record), find_record_device(record)
    reason = "the nominal peak of a CPU is not known"
    if device is not None:
        reason = f"{device.name} has no nominal peak in {dtype}"
    elif name is not None:
        reason = f"{name} is not in the table of devices"
    return f"{reason}; `flopwatch peaks` measures one, and later records carry it"
