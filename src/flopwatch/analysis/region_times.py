"""What instruments saw inside a case, and what they cost.

Every measured sample is followed by the same run with instruments, in the same round. A region is
compared with the baseline's within rounds, like everything else; the instrumented run beside its
plain sample tells what the instruments cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flopwatch.analysis.flop_limit import limit_region, region_shares
from flopwatch.analysis.samples import by_round, pair_ratio, totals_by_round
from flopwatch.analysis.statistics import Estimate, Verdict, estimate_median, judge
from flopwatch.records.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """One region of a case."""

    calls: int
    """In one run."""
    call_ns: Estimate
    """Of one call: the region's time in a run, over its calls."""
    share: Estimate
    """Of the instrumented run."""
    speedup: Estimate | None
    """Over the same region of the baseline; None for the baseline and where it has no such one."""
    verdict: Verdict | None
    limit: float | None
    """The speedup that arithmetic alone would give; None where its cost does not differ."""
    flops_per_s: float | None
    """None where its FLOPs are not declared."""


def look_inside(record: Record, baseline: Record | None) -> dict[str, Inside]:
    """By region; empty where no instrumented run was made."""
    return {
        name: _look_at(record, baseline, name)
        for name in record.regions
        if region_shares(record, name)
    }


def _look_at(record: Record, baseline: Record | None, name: str) -> Inside:
    region = record.regions[name]
    speedup = None
    if baseline is not None and name in baseline.regions:
        theirs = by_round(baseline, baseline.regions[name].samples_ns)
        ratio = pair_ratio(by_round(record, region.samples_ns), theirs)
        speedup = None if ratio is None else ratio.inverse()
    call_ns = estimate_median([ns / region.calls for ns in region.samples_ns])
    flops, run_ns = sum(record.flops.get(name, {}).values()), region.calls * call_ns.value
    return Inside(
        calls=region.calls,
        call_ns=call_ns,
        share=estimate_median(region_shares(record, name)),
        speedup=speedup,
        verdict=None if speedup is None else judge(speedup),
        limit=None if baseline is None else limit_region(record, baseline, name),
        flops_per_s=flops / run_ns * 1e9 if flops and run_ns else None,
    )


def estimate_instruments(records: Iterable[Record]) -> Estimate | None:
    """How many times longer runs take with instruments: in each round the mean ratio over the
    records (one, or the variants of a group), of that the median. None where there are none."""
    ratios: dict[int, list[float]] = {}
    for record in records:
        plain = totals_by_round(record)
        for round_, instrumented_ns in by_round(record, record.instrumented_ns).items():
            ratios.setdefault(round_, []).append(instrumented_ns / plain[round_])
    means = [sum(ratios[round_]) / len(ratios[round_]) for round_ in sorted(ratios)]
    return estimate_median(means) if means else None
