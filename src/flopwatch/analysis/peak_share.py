"""What part of the hardware's peak a case reached: the time that its FLOPs take at the peak of
their dtype, dtype by dtype, over the time that they took.

There are two peaks: the nominal one, of a data sheet, and the one that `flopwatch peaks` has
measured on the machine, which no program may have reached before. FLOPs are those that the suite
declares, of all ranks. On GPUs a rank has a device of its own; on a CPU all of them share the
threads, and the measured peak is that of all threads.

Of training jobs there is also MFU and HFU, in one convention: `flopwatch mfu` has the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwatch.analysis.record_device import (
    FindPeak,
    Standard,
    count_devices,
    list_standards,
    name_arithmetic,
)
from flopwatch.errors import FlopwatchError, Unsupported
from flopwatch.jobs.precision import Peak
from flopwatch.records.record import Record

if TYPE_CHECKING:  # it knows all models, and few tables have training jobs
    from flopwatch.jobs.utilisation import Utilisation

__all__ = ["PeakShare", "Standard", "count_flops", "find_peak_shares", "find_utilisation"]

CONVENTION = "exact"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakShare:
    share: float
    """1 where the case reached the peak; more is impossible."""
    peaks: Mapping[str, Peak]
    """Of one device, by dtype: those that the case has FLOPs of."""
    devices: int


def find_peak_shares(record: Record, total_ns: float) -> dict[Standard, PeakShare]:
    """By the standards whose peaks are known for all dtypes that the case has FLOPs of."""
    found = {
        standard: _share(record, total_ns, find_peak)
        for standard, find_peak in list_standards(record).items()
    }
    return {standard: share for standard, share in found.items() if share is not None}


def find_utilisation(record: Record, tokens_per_s: float | None) -> Utilisation | None:
    """Of a training job of ranks, by the nominal peak, or where that is not known, by the
    measured one; None for anything else."""
    if "ranks" not in record.params or tokens_per_s is None:
        return None
    from flopwatch.analysis.record_job import assess_record
    from flopwatch.jobs.conventions import CONVENTIONS

    try:
        assessment = assess_record(record, tokens_per_s, conventions=[CONVENTIONS[CONVENTION]])
    except (FlopwatchError, Unsupported):  # somebody's own suite of that name
        return None
    return next(iter(assessment.utilisations), None)


def count_flops(record: Record) -> dict[str, float]:
    """By dtype, of all phases; a key ``phase/region`` is a part of one, already counted there."""
    counted: dict[str, float] = {}
    for key, by_dtype in record.flops.items():
        if "/" not in key:
            for dtype, count in by_dtype.items():
                counted[dtype] = counted.get(dtype, 0.0) + count
    return counted


def _share(record: Record, total_ns: float, find_peak: FindPeak) -> PeakShare | None:
    flops = {dtype: count for dtype, count in count_flops(record).items() if count}
    peaks = {dtype: find_peak(name_arithmetic(record, dtype)) for dtype in flops}
    known = {dtype: peak for dtype, peak in peaks.items() if peak is not None}
    if not flops or len(known) < len(flops):
        return None
    devices = count_devices(record)
    at_peak_s = sum(count / known[dtype].flops_per_s for dtype, count in flops.items()) / devices
    return PeakShare(
        share=at_peak_s / total_ns * 1e9,
        peaks={name_arithmetic(record, dtype): peak for dtype, peak in known.items()},
        devices=devices,
    )
