"""A record's samples as the statistics want them: whole runs, measured ones only, by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

from flopwatch.analysis.statistics import Estimate, estimate_median, estimate_ratio
from flopwatch.records.record import Record


def measured_totals_ns(record: Record) -> list[float]:
    """Sum of the phases, sample by sample, warm-up left out."""
    phases = [times_ns[record.warmup_samples :] for times_ns in record.samples_ns.values()]
    totals_ns = phases[0] if phases else []
    for times_ns in phases[1:]:
        totals_ns = list(map(add, totals_ns, times_ns))
    return totals_ns


def estimate_total_ns(record: Record) -> Estimate:
    """The median of the whole runs."""
    return estimate_median(measured_totals_ns(record))


def totals_by_round(record: Record) -> dict[int, float]:
    return by_round(record, measured_totals_ns(record))


def by_round(record: Record, measured: Sequence[float]) -> dict[int, float]:
    """Values that follow the measured samples one by one; there may be fewer of them."""
    return dict(zip(record.rounds[record.warmup_samples :], measured, strict=False))


def pair_ratio(values: Mapping[int, float], others: Mapping[int, float]) -> Estimate | None:
    """The ratio of `values` to `others` in the rounds that have both, or None without one."""
    # Only a clock that is too coarse for a region gives zero.
    shared = [r for r in sorted(values.keys() & others.keys()) if values[r] > 0 and others[r] > 0]
    if not shared:
        return None
    return estimate_ratio([values[r] for r in shared], [others[r] for r in shared])
