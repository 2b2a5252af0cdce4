"""Warnings about what a case was compared with: its baseline, reference, a peak, an estimate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten

from flopwatch.analysis.comparable import find_condition_differences
from flopwatch.analysis.part_times import estimate_instruments
from flopwatch.analysis.record_device import (
    Standard,
    find_peak_shares,
    find_utilisation,
    sum_flops,
)
from flopwatch.analysis.statistics import median
from flopwatch.analysis.warning_findings import Case, Finding, group_cases

MOST_OF_PEAK: dict[Standard, float] = {"nominal": 1.0, "measured": 1.05}
"""A data sheet's is never exceeded; two runs of `flopwatch peaks` differ by up to 5 %."""
UNKNOWN_DTYPE = "unknown"
TOLERANCE_SHARE = 0.8
INSTRUMENTS = 0.05
MEMORY_ERROR = 0.1
MOST_REASON = 100
"""Characters of a failure's reason; `flopwatch show` has all of it."""


def find_unmeasured(cases: Sequence[Case]) -> Iterator[Finding]:
    """Some failures are findings (what is too large, what is not supported); nothing but failures
    is a benchmark that did not work."""
    measured = {case.record.suite for case in cases if case.totals_ns}
    for case in cases:
        record = case.record
        if record.suite not in measured:
            reason = shorten(f"{record.status}: {record.message or 'no message'}", MOST_REASON)
            yield case.found(
                f"{reason}; no case of {record.suite} has a time",
                cause=f"{record.suite} {reason}",
            )


def find_failed_baselines(cases: Sequence[Case]) -> Iterator[Finding]:
    # Where a run has none at all, nobody meant to compare.
    compared = {(case.record.run_id, case.record.suite) for case in cases if case.is_baseline}
    for case in cases:
        if not case.totals_ns or not case.is_rival or case.ratios:
            continue
        name, baseline = case.record.baseline, case.baseline
        if baseline is None:
            if (case.record.run_id, case.record.suite) in compared:
                fact = f"there is no record of its baseline {name} in its group: no speedup"
                yield case.found(fact, cause="missing")
        elif baseline.status != "ok":
            yield case.found(
                f"its baseline {name} failed ({baseline.status}: {baseline.message}), and so "
                "there is no speedup",
                cause=baseline.status,
            )


def find_over_peak(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if not case.totals_ns or not case.record.flops:
            continue
        total_ns = median(case.totals_ns)
        shares = find_peak_shares(case.record, total_ns)
        for standard, found in shares.items():
            share = found.burst_share
            if share > MOST_OF_PEAK[standard]:
                yield case.found(
                    f"its FLOPs in its time are {100 * share:.0f} % of the {standard} peak",
                    size=share,
                    cause=standard,
                )
        tokens = case.record.facts.get("tokens")
        used = find_utilisation(case.record, tokens / total_ns * 1e9) if tokens else None
        if used is not None and used.impossible is not None and not shares:
            yield case.found(used.impossible, size=used.hfu or 0.0, cause="utilisation")


def find_uncounted(cases: Sequence[Case]) -> Iterator[Finding]:
    counted_groups = {
        (case.record.run_id, case.record.group_id): case.record.variant
        for case in reversed(cases)
        if sum(sum_flops(case.record.flops).values()) > 0
    }
    for case in cases:
        record = case.record
        if not case.totals_ns or record.kind == "parts":
            continue
        flops = sum_flops(record.flops)
        sibling = counted_groups.get((record.run_id, record.group_id))
        missing = [phase for phase in record.samples_ns if phase not in record.flops]
        if sum(flops.values()) <= 0:
            if sibling is not None:
                fact = f"it declares no FLOPs, and {sibling} of its group does"
                yield case.found(fact, cause="none")
        elif missing:
            yield case.found(
                f"it declares FLOPs for some phases and none for {', '.join(missing)}, so "
                "that its FLOP/s is too low",
                size=len(missing),
                cause=", ".join(missing),
            )
        if UNKNOWN_DTYPE in flops:
            fact = "its FLOPs are of an unknown dtype, which has no peak"
            yield case.found(fact, cause="dtype")


def find_not_comparable(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if not case.ratios or not case.is_rival or case.baseline is None:
            continue
        differences = find_condition_differences(case.baseline, case.record)
        if differences:
            fact = ", ".join(
                f"{name} {theirs or 'unknown'} in the baseline and {own or 'unknown'} here"
                for name, (theirs, own) in differences.items()
            )
            yield case.found(fact, cause=fact)


def find_unchecked(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if case.record.unchecked is not None and case.totals_ns:
            fact = f"its results were not compared: {case.record.unchecked}"
            yield case.found(fact, cause=case.record.unchecked)


def find_used_tolerances(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        check = case.record.check
        if check is None or not case.totals_ns or check.tolerance <= 0:
            continue
        errors = {name: error for name, error in check.errors.items() if error is not None}
        name = max(errors, key=lambda each: errors[each], default="")
        share = errors.get(name, 0.0) / check.tolerance
        if share >= TOLERANCE_SHARE:
            yield case.found(
                f"the error of its {name} is {errors[name]:.2g}, {100 * share:.0f} % of the "
                f"{check.tolerance:.2g} that are allowed",
                size=share,
            )


def find_costly_instruments(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if not case.record.instrumented_ns or not case.totals_ns:
            continue
        cost = estimate_instruments([case.record])
        # The low end: noise between a sample and the next is not what instruments cost.
        if cost is not None and cost.low is not None and cost.low - 1 >= INSTRUMENTS:
            yield case.found(
                f"with instruments a run takes {100 * (cost.value - 1):.0f} % longer, so that "
                "the shares of its regions are not those of a plain run",
                size=cost.value,
            )


def find_wrong_estimates(cases: Sequence[Case]) -> Iterator[Finding]:
    for group in group_cases(cases, lambda case: (case.record.run_id, case.record.group_id)):
        # What was held before a run includes the tensors of variants that are not predicted, and in
        # a job those of all variants.
        is_mixed = any(not case.record.predicted_memory_bytes for case in group)
        if is_mixed or (len(group) > 1 and any(case.record.ranks for case in group)):
            continue
        for case in group:
            record = case.record
            estimate_bytes = sum(record.predicted_memory_bytes.values())
            if record.resident_bytes is None or not record.memory or not estimate_bytes:
                continue
            peaks = [held.peak_bytes for held in record.memory.values()]
            error = estimate_bytes / (record.resident_bytes + max(peaks)) - 1
            side = "more" if error > 0 else "less"
            if abs(error) > MEMORY_ERROR:
                yield case.found(
                    f"the memory predicted is {100 * abs(error):.0f} % {side} than was measured",
                    size=abs(error),
                    cause=side,
                )


def find_noted(cases: Sequence[Case]) -> Iterator[Finding]:
    """What no other warning is about."""
    for case in cases:
        for note in case.record.notes:
            if case.totals_ns:
                yield case.found(note, cause=note)
