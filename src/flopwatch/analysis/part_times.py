"""The parts of a run: its phases, the regions that instruments saw inside them, and what the ranks
of a job did meanwhile; what instruments cost, and the speedup that arithmetic allows.

Every measured sample is followed by the same run with instruments, in the same round. A region is
compared with the baseline's within rounds, like everything else; the instrumented run over its
plain sample is what the instruments cost.

The limit is the speedup if time followed FLOPs, part by part (Amdahl). FLOPs count by the width of
their numbers: at best, arithmetic on 16 bits is twice as fast as on 32, and on 8 bits four times.
The cost of a part is the sum of its FLOPs times their bits. The parts of a run are its regions and
what is left of each phase. Each part of the baseline is given the time that the variant's cost
would take at the baseline's own speed in that part; the limit is the baseline's time over the sum.
A variant that stays below it loses time to something other than arithmetic (memory, launches,
copies) or has no faster arithmetic for its narrow numbers.

Regions are timed in runs with instruments, phases in plain ones. A region's time is therefore its
share of the instrumented run, times the plain run: exact if instruments slow everything equally,
and otherwise off by no more than they cost. Regions that come out longer than their phase are
shortened to it, in proportion. Regions are assumed not to overlap. A part whose FLOPs are unknown
or zero on either side keeps its time; the FLOPs of an unknown region count in the rest of its
phase, on both sides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from flopwatch.analysis.statistics import (
    Estimate,
    Verdict,
    by_round,
    estimate_median,
    is_measured,
    judge,
    measured_totals_ns,
    median,
    pair_ratio,
    totals_by_round,
)
from flopwatch.records.quantities import SHORTEST_NS
from flopwatch.records.record import Record

WIDTH = re.compile(r"(?:b?float|u?int)(\d+)")
PLAIN_BITS = 32
"""Of a dtype whose name has no width."""
SLOW = 0.1
"""Ranks that wait for so large a share of a step wait for a slow one."""


def part_times_ns(record: Record) -> dict[str, float]:
    """By region, and by phase for what is left of it: the parts of one plain run."""
    total_ns = median(measured_totals_ns(record))
    parts: dict[str, float] = {}
    for phase, samples_ns in record.samples_ns.items():
        phase_ns = median(samples_ns[record.warmup_samples :])
        inside_ns = {
            name: total_ns * median(shares)
            for name in record.regions
            if name.startswith(f"{phase}/") and (shares := region_shares(record, name))
        }
        excess = max(1.0, sum(inside_ns.values()) / phase_ns)
        parts |= {name: time_ns / excess for name, time_ns in inside_ns.items()}
        parts[phase] = max(0.0, phase_ns - sum(inside_ns.values()))
    return parts


SMALLEST_SHARE = 0.05
"""Of the whole change; what moved less is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedPart:
    name: str
    """A phase; a region as ``phase/region``; what is left of a phase with regions by its name."""
    old_ns: float | None
    """As long as it would have been in the new run; None: there was no such part."""
    new_ns: float | None
    share: float
    """Of the change of the whole run; negative where it moved the other way."""

    @property
    def change_ns(self) -> float:
        return (self.new_ns or 0.0) - (self.old_ns or 0.0)


def find_moved_parts(old: Record, new: Record, ratio: float) -> list[MovedPart]:
    """In order of their share in the change, the largest first; empty for what has one part, and
    where the whole did not change.

    `ratio` is that of the times, new over old, as the verdict has it: relative to the baseline, or
    paired by round. The old parts are scaled to it, so that what differs between two runs of the
    same code (the machine's speed) moves no part, and signs are those of the verdict.
    """
    total_ns = median(measured_totals_ns(new))
    before, after = scale_regions(old, total_ns / ratio), scale_regions(new, total_ns)
    change_ns = total_ns - total_ns / ratio
    names = list({**before, **after})
    if len(names) < 2 or change_ns == 0:
        return []
    parts = [
        MovedPart(
            name=name,
            old_ns=before.get(name),
            new_ns=after.get(name),
            share=(after.get(name, 0.0) - before.get(name, 0.0)) / change_ns,
        )
        for name in names
    ]
    return sorted(
        (part for part in parts if abs(part.share) >= SMALLEST_SHARE),
        key=lambda part: -part.share,
    )


def find_common_parts(parts: Sequence[Sequence[MovedPart]]) -> dict[str, float]:
    """Over many cases: the mean share of each part in the changes, the largest first."""
    names = dict.fromkeys(part.name for case in parts for part in case)
    shares = {
        name: sum(part.share for case in parts for part in case if part.name == name) / len(parts)
        for name in names
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def region_shares(record: Record, region: str) -> list[float]:
    """What part of each instrumented run it took."""
    pairs = zip(record.regions[region].samples_ns, record.instrumented_ns, strict=True)
    return [part_ns / run_ns for part_ns, run_ns in pairs if run_ns >= SHORTEST_NS]


def scale_phases(record: Record, total_ns: float) -> dict[str, float]:
    """Medians of phases, so that they add up to that of whole runs."""
    medians = {p: median(t[record.warmup_samples :]) for p, t in record.samples_ns.items()}
    return {phase: total_ns * time_ns / sum(medians.values()) for phase, time_ns in medians.items()}


def scale_regions(record: Record, total_ns: float) -> dict[str, float]:
    """The same with regions, each phase being what is left of it."""
    parts = part_times_ns(record)
    whole_ns = sum(parts.values())
    return {name: total_ns * time_ns / whole_ns for name, time_ns in parts.items()}


def estimate_limit(record: Record, baseline: Record) -> float | None:
    """The speedup over the baseline that arithmetic allows; None where its cost does not differ."""
    times_ns = part_times_ns(baseline)
    known = times_ns.keys() & record.flops.keys() & baseline.flops.keys()
    ratios = {
        part: _compare_costs(_part_cost(record, part, known), _part_cost(baseline, part, known))
        for part in times_ns
    }
    if all(ratio is None for ratio in ratios.values()):
        return None
    expected_ns = sum(time_ns / (ratios[part] or 1) for part, time_ns in times_ns.items())
    return sum(times_ns.values()) / expected_ns


def _compare_costs(cost: float, baseline_cost: float) -> float | None:
    """How many times less than the baseline's; None where that is unknown, or equal."""
    if cost <= 0 or baseline_cost <= 0 or math.isclose(cost, baseline_cost):
        return None
    return baseline_cost / cost


def _part_cost(record: Record, part: str, known: Collection[str]) -> float:
    inside = [name for name in known if name.startswith(f"{part}/")]
    return _find_cost(record, part) - sum(_find_cost(record, name) for name in inside)


def _find_cost(record: Record, key: str) -> float:
    """FLOPs times their bits, of all dtypes; 0 where nothing is declared."""
    counts = record.flops.get(key, {})
    return sum(count * find_bits(dtype) for dtype, count in counts.items())


def find_bits(dtype: str) -> int:
    """
    >>> [find_bits(dtype) for dtype in ("float32", "bfloat16", "int8", "float8_e4m3fn", "decimal")]
    [32, 16, 8, 8, 32]
    """
    width = WIDTH.match(dtype)
    return int(width[1]) if width else PLAIN_BITS


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
        limit=None
        if baseline is None
        else _compare_costs(_find_cost(record, name), _find_cost(baseline, name)),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Of one rank's steps, after warm-up: the median step on its own clock, divided as the time of
    all steps together is, as far as it was noted; None where it was not. In a pipeline, the step is
    that of the job: a rank's bubble goes on until the last one ends."""

    rank: int
    step_ns: float
    working_ns: float | None
    waiting_ns: float | None
    """In collectives, until the last rank had come."""
    transfer_ns: float | None
    """In exchanges, from then on."""
    overlapped_ns: float | None
    """In which an exchange ran beside other work."""
    bubble_ns: float | None = None
    """For other stages of a pipeline; None where there is none, too."""


def split_ranks(record: Record) -> list[Split]:
    """By rank; nothing where the record is of no job, or has no measured samples."""
    if not is_measured(record):
        return []
    first = record.warmup_samples
    splits = []
    for number, rank in enumerate(record.ranks):
        times_ns = record.samples_ns if rank.bubble_ns else rank.samples_ns
        steps_ns = [sum(phases) for phases in zip(*times_ns.values(), strict=True)][first:]
        waiting, transfer, overlapped, bubble = (
            _find_share(parts_ns[first:], steps_ns)
            for parts_ns in (
                rank.waiting_ns, rank.transfer_ns, rank.overlapped_ns, rank.bubble_ns
            )
        )  # fmt: skip
        step_ns = median(steps_ns)
        working = None
        if waiting is not None and transfer is not None:
            working = max(0.0, 1 - waiting - transfer - (bubble or 0.0))
        splits.append(
            Split(
                rank=number,
                step_ns=step_ns,
                working_ns=None if working is None else step_ns * working,
                waiting_ns=None if waiting is None else step_ns * waiting,
                transfer_ns=None if transfer is None else step_ns * transfer,
                overlapped_ns=None if overlapped is None else step_ns * overlapped,
                bubble_ns=None if bubble is None else step_ns * bubble,
            )
        )
    return splits


def _find_share(parts_ns: Sequence[float | None], steps_ns: Sequence[float]) -> float | None:
    """Of the steps of which a part is known."""
    pairs = zip(parts_ns, steps_ns, strict=False)
    known = [(part_ns, step_ns) for part_ns, step_ns in pairs if part_ns is not None]
    return sum(part for part, _ in known) / sum(step for _, step in known) if known else None


def find_slow_rank(splits: list[Split]) -> Split | None:
    """The rank that all others wait for, if they do for long."""
    shares = [s.waiting_ns / s.step_ns for s in splits if s.waiting_ns is not None]
    if len(splits) < 2 or len(shares) < len(splits):
        return None
    slowest = shares.index(min(shares))
    others = [share for number, share in enumerate(shares) if number != slowest]
    return splits[slowest] if min(others) - shares[slowest] > SLOW else None
