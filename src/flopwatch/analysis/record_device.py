"""Where a record's matmuls were computed: on what device, in what arithmetic, and what part of its
peak they reached: the time that FLOPs take at the peak of their dtype, dtype by dtype, over the
time that they took.

There are two peaks: the nominal one, of a data sheet, and the one that `flopwatch peaks` has
measured on the machine, which no program may have reached before. FLOPs are those that the suite
declares, of all ranks. On GPUs a rank has a device of its own; on a CPU all of them share the
threads, and the measured peak is that of all threads.

Of training jobs there is also MFU and HFU, in one convention: `flopwatch mfu` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from flopwatch.devices.device_names import find_device
from flopwatch.devices.device_table import SPELLINGS, Device
from flopwatch.devices.environment import look_up
from flopwatch.devices.kinds import is_host
from flopwatch.devices.measured_peaks import from_environment
from flopwatch.errors import FlopwatchError, Unsupported
from flopwatch.jobs.precision import Peak
from flopwatch.records.record import Record

if TYPE_CHECKING:  # it knows all models, and few tables have training jobs
    from flopwatch.jobs.utilisation import Utilisation

Standard = Literal["nominal", "measured"]
FindPeak = Callable[[str], Peak | None]

CONVENTION = "exact"
"""Of MFU and HFU, for tables."""


def find_device_name(record: Record) -> str | None:
    """As the driver reports it; None where a CPU was measured."""
    name = look_up(record.environment, "torch.gpu.name")
    return str(name) if name and not is_host(record.settings.device) else None


def find_record_device(record: Record) -> Device | None:
    """None where it is not in the table of devices, as no CPU is."""
    name = find_device_name(record)
    return None if name is None else find_device(name)


def find_background_share(records: Iterable[Record]) -> float | None:
    """The most that other processes, or other virtual machines, took of all cores' time while one
    of these was measured; None where no record says."""
    names = ("load.background_share", "load.steal_share")
    found = [[look_up(record.environment, name) for name in names] for record in records]
    known = [
        # A record may come from anybody, and say anything.
        sum(share for share in shares if isinstance(share, int | float))
        for shares in found
        if isinstance(shares[0], int | float)
    ]
    return min(1.0, max(known)) if known else None


def count_ranks(record: Record) -> int:
    if record.monitored is not None:
        return max(1, record.monitored.world_size)
    ranks = record.params.get("ranks", 1)
    return ranks if isinstance(ranks, int) and ranks >= 1 else 1  # an axis of a user's own suite


def count_devices(record: Record) -> int:
    """A rank has a GPU of its own; on a CPU all ranks share the threads."""
    return 1 if is_host(record.settings.device) else count_ranks(record)


def name_arithmetic(record: Record, dtype: str) -> str:
    """As peaks are listed by: a GPU may be set to round the matmuls of float32 to tf32."""
    if dtype == "float32" and not is_host(record.settings.device):
        rounds = look_up(record.environment, "torch.gpu.tf32_matmul") is True
        return "tf32" if rounds else "float32"
    return SPELLINGS.get(dtype, dtype)


def list_standards(record: Record, *, burst: bool = False) -> dict[Standard, FindPeak]:
    """How to find the peak of one device for a dtype; the nominal one first. With `burst`, the
    measured one is what a moment can have, not what a device keeps up."""
    device, measured = find_record_device(record), from_environment(record.environment)
    found: dict[Standard, FindPeak] = {} if device is None else {"nominal": device.find_peak}
    if measured is not None:
        found["measured"] = measured.find_burst if burst else measured.find_peak
    return found


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakShare:
    share: float
    """1 where the case reached the peak."""
    burst_share: float
    """The same, of what a moment can have: more than 1 is impossible. It differs where the peak is
    one that was sustained for seconds."""
    peaks: Mapping[str, Peak]
    """Of one device, by dtype: those that the case has FLOPs of."""
    devices: int


def find_peak_shares(record: Record, total_ns: float) -> dict[Standard, PeakShare]:
    """By the standards whose peaks are known for all dtypes that the case has FLOPs of."""
    flops = {dtype: count for dtype, count in sum_flops(record.flops).items() if count}
    devices = count_devices(record)
    found: dict[Standard, PeakShare] = {}
    bursts = list_standards(record, burst=True)
    for standard, find_peak in list_standards(record).items():
        known, highest = (
            {
                dtype: peak
                for dtype in flops
                if (peak := find(name_arithmetic(record, dtype))) is not None
            }
            for find in (find_peak, bursts[standard])
        )
        if not flops or len(known) < len(flops):
            continue
        at_peak_s, at_burst_s = (
            sum(count / peaks[dtype].flops_per_s for dtype, count in flops.items())
            for peaks in (known, highest)
        )
        found[standard] = PeakShare(
            share=at_peak_s / devices / total_ns * 1e9,
            burst_share=at_burst_s / devices / total_ns * 1e9,
            peaks={name_arithmetic(record, dtype): peak for dtype, peak in known.items()},
            devices=devices,
        )
    return found


def sum_flops(flops: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """By dtype, of all phases; a key ``phase/region`` is a part of one, already counted there."""
    counted: dict[str, float] = {}
    for key, by_dtype in flops.items():
        if "/" not in key:
            for dtype, count in by_dtype.items():
                counted[dtype] = counted.get(dtype, 0.0) + count
    return counted


def find_utilisation(record: Record, tokens_per_s: float | None) -> Utilisation | None:
    """Of a training job of ranks, by the nominal peak, or where that is not known, by the
    measured one; None for anything else."""
    if "ranks" not in record.params or tokens_per_s is None:
        return None
    from flopwatch.analysis.record_job import assess_record
    from flopwatch.jobs.conventions import CONVENTIONS

    try:
        assessment = assess_record(record, tokens_per_s, conventions=[CONVENTIONS[CONVENTION]])
    except (FlopwatchError, Unsupported):  # a user's own suite with such an axis
        return None
    return next(iter(assessment.utilisations), None)
