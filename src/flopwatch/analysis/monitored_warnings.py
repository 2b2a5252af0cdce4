"""Warnings about monitored training loops: what they lose, and to what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.slow_steps import Cause
from flopwatch.analysis.warning_findings import Case, Finding

LEAST_SLOW = 0.01
"""Of the time of all steady steps, that slow steps have lost."""
DATA_BOUND = 0.1
"""Of the mean step."""
LOW_GOODPUT = 0.9
FEWEST_STEPS = 100
"""A run of fewer is mostly start-up."""
PADDING = 0.1
OVER_PEAK = 1.05
"""A measured peak is known to 5 %."""

ADVICE: dict[Cause, str] = {
    "data": "more loader workers, a larger prefetch_factor, or data that is nearer",
    "garbage collection": "call gc.freeze() after the set-up, and collect between steps: "
    "gc.disable() and gc.collect() every few hundred steps",
    "other ranks": "look at the rank that comes last: its data, its clocks, its neighbours on the "
    "node",
    "communication": "all ranks wait alike: look at the network, and at what overlaps with it",
    "allocator retries": "memory is nearly full: a smaller micro-batch, or "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "pause": "the step after a pause is slow: save asynchronously, or keep the loader's workers "
    "(persistent_workers)",
    "throttling": "cool the device, or lower its power limit for a steady clock",
    "unknown": "`flopwatch show -v` says which part of the step grew; a profiler trace of such a "
    "step says more",
}


def find_slow(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        run = case.monitored
        if run is None or not run.slow:
            continue
        share = run.slow_lost_ns / (run.mean_step_ns * max(1, run.steady_steps))
        if share >= LEAST_SLOW:
            main, count = next(iter(run.slow_causes.items()))
            others = f", {count} by {main}" if main != "unknown" else ", most of them unexplained"
            yield case.found(
                f"{len(run.slow)} slow steps of {run.steady_steps:,} took {100 * share:.1f} % of "
                f"the time{others}",
                size=share,
                cause=main,
                advice=ADVICE[main],
            )


def find_straggling(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        found = None if case.monitored is None else case.monitored.stragglers
        if found is None or found.pattern == "none":
            continue
        who = {
            "always": f"rank {found.rank} comes last nearly always",
            "at-times": f"most of it for rank {found.rank}",
            "varying": "now one rank comes last, now another",
        }[found.pattern]
        advice = None
        if found.pattern == "varying":
            advice = "what ranks do varies: look at their data, garbage collections and the network"
        yield case.found(
            f"{100 * found.lost_share:.1f} % of the steps' time is spent waiting for the last of "
            f"{len(found.ranks)} ranks; {who}",
            size=found.lost_share,
            cause=found.pattern,
            advice=advice,
        )


def find_data_bound(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        data = None if case.monitored is None else case.monitored.find_part("data")
        if data is not None and data.share >= DATA_BOUND:
            yield case.found(
                f"{100 * data.share:.0f} % of the mean step waits for data", size=data.share
            )


def find_low_goodput(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        run = case.monitored
        goodput = None if run is None else run.goodput
        if goodput is None or goodput.steps < FEWEST_STEPS or goodput.share >= LOW_GOODPUT:
            continue
        reason, lost_s = max(goodput.lost_s.items(), key=lambda item: item[1])
        yield case.found(
            f"{100 * goodput.share:.0f} % of the wall clock advanced training; most of the rest, "
            f"{100 * lost_s / goodput.wall_s:.0f} %, is {reason}",
            size=1 - goodput.share,
            cause=reason,
        )


def find_padding(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        tokens = None if case.monitored is None else case.monitored.tokens
        if tokens is not None and tokens.padding_share >= PADDING:
            yield case.found(
                f"{100 * tokens.padding_share:.0f} % of the computed tokens are padding",
                size=tokens.padding_share,
            )


def find_impossible(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        used = None if case.monitored is None else case.monitored.utilisation
        share = max(used.mfu or 0.0, used.hfu or 0.0) if used is not None else 0.0
        if used is not None and share > OVER_PEAK:
            yield case.found(
                f"{100 * share:.0f} % of the peak ({used.peak_source}) is impossible", size=share
            )


def find_unfinished(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        run = case.monitored
        if run is None:
            continue
        ends = [start.end for start in run.starts[:-1]]
        died = sum(end in (None, "exception") for end in ends)
        if died:
            last = "" if run.goodput is None else f", {run.goodput.repeated_steps} steps repeated"
            yield case.found(
                f"{died} of {len(run.starts)} starts did not end by themselves{last}", size=died
            )
        if run.end in ("exception", "disabled"):
            yield case.found(f"its last start ended by {ENDS[run.end]}", cause=run.end)


ENDS = {"exception": "an exception", "disabled": "the monitor disabling itself"}
