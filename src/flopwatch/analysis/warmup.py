"""What the first steps of a case cost, and how many of them must be left out.

All samples of a record are kept in order, the very first call included. So one record answers what
others measure once for every number of warm-up steps: leave out so many, average the next ones.

Every average of a record is over equally many steps, ten where it has them: with more, the first
call would weigh less, and tables could not be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from flopwatch.analysis.statistics import THRESHOLD, median
from flopwatch.records.record import Record, identify
from flopwatch.worker.sampling import PRIME_BELOW_NS

DISCARDED = (0, 1, 2, 5)
"""Numbers of steps to leave out, as published."""
STEPS = 10
"""Steps that an average is over, as published."""
MIN_STEPS = 5
"""With fewer, a standard deviation says little."""
STD_RATIO = 3.0
"""So many times that of the steady state is not enough to call a standard deviation larger: of ten
steps each, two that are equal differ by 2.3 in one of a hundred cases."""
SLOW = 1.5
"""A first step that takes so many times as long as a steady one is left out by everybody, whatever
the mean of the steps after it."""
UNSURE = 0.25
"""Where chance alone moves a mean by more than this share of it, steps vary too much to show how
many of them are warm-up."""
OPTIMIZER = "optimizer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    mean_s: float
    std_s: float | None
    """Of a sample: divided by n - 1. None for a single value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Some steps in a row."""

    discarded: int
    """Steps before them."""
    calls: int
    """Calls before them: more, where a step is several or has an untimed one before it."""
    phases: dict[str, Spread]
    total: Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What the first steps took beyond measured ones. None where it is not known."""

    first_s: float
    measured_s: float
    """Median of the measured steps: of steady ones, where a steady state was detected."""
    compilation_s: float | None
    """As torch.compile took it, in the forward and the backward pass of the first step."""
    optimizer_s: float | None
    """Of the first step of an optimizer. None also where later ones take as long."""
    rest_s: float | None
    """What is left of the first step's excess."""
    page_faults: int | None
    later_steps: int
    """Other warm-up steps that took longer than any measured one."""
    later_s: float
    """What they took more, together."""

    @property
    def excess_s(self) -> float:
        return self.first_s - self.measured_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    record: Record
    steps: int = 0
    """That every average is over."""
    windows: list[Window] = field(default_factory=list)
    """By number of discarded steps, as far as enough are left; none where the case failed."""
    steady: Window | None = None
    """None where no steady state was detected, or too little measured."""
    enough: int | None = None
    """The fewest discarded steps after which mean and standard deviation are the steady ones, and
    the first that is left is not slow; None where the steady ones are not known."""
    at_least: int = 0
    """Steps at the beginning that are slow, one after the other: whatever else is known, these are
    warm-up."""
    is_sure: bool = True
    """False where steady steps vary too much to say that fewer are not enough, or more needed."""
    costs: Costs | None = None
    """None where too little was measured."""

    @property
    def first_s(self) -> float | None:
        return _totals_ns(self.record)[0] / 1e9 if self.record.rounds else None


def study(record: Record) -> Warmup:
    taken = len(record.rounds)
    starts = [*DISCARDED, *([record.warmup_samples] if record.steady else [])]
    possible = [start for start in starts if taken - start >= MIN_STEPS]
    if record.status != "ok" or not possible:
        return Warmup(record=record)
    steps = min(STEPS, *(taken - start for start in possible))
    windows = {start: _average(record, start, steps) for start in possible}
    steady = windows.get(record.warmup_samples) if record.steady else None
    return Warmup(
        record=record,
        steps=steps,
        windows=[windows[start] for start in DISCARDED if start in windows],
        steady=steady,
        enough=None if steady is None else _find_enough(record, steady, steps),
        at_least=_count_slow(record),
        is_sure=steady is None or _find_chance(steady, steps) <= UNSURE,
        costs=_find_costs(record) if taken - record.warmup_samples >= MIN_STEPS else None,
    )


def measure_spread(samples_ns: Sequence[float]) -> Spread:
    seconds = [ns / 1e9 for ns in samples_ns]
    return Spread(mean_s=fmean(seconds), std_s=stdev(seconds) if len(seconds) > 1 else None)


def compare_mean(spread: Spread, steady: Spread) -> float:
    """How much larger, relative to the steady state."""
    return spread.mean_s / steady.mean_s - 1


def compare_std(spread: Spread, steady: Spread) -> float | None:
    """How many times as large; None where the steady state does not vary at all."""
    return spread.std_s / steady.std_s if spread.std_s is not None and steady.std_s else None


def count_calls(record: Record, discarded: int) -> int:
    """Calls that were made before the sample of that number."""
    samples = zip(_totals_ns(record)[:discarded], record.calls_per_sample, strict=False)
    is_primed = record.settings.cache == "hot"
    return sum(n + (is_primed and total_ns * n < PRIME_BELOW_NS) for total_ns, n in samples)


def _average(record: Record, start: int, steps: int) -> Window:
    chosen = slice(start, start + steps)
    return Window(
        discarded=start,
        calls=count_calls(record, start),
        phases={phase: measure_spread(ns[chosen]) for phase, ns in record.samples_ns.items()},
        total=measure_spread(_totals_ns(record)[chosen]),
    )


def _totals_ns(record: Record) -> list[float]:
    return [sum(sample) for sample in zip(*record.samples_ns.values(), strict=True)]


def _find_enough(record: Record, steady: Window, steps: int) -> int:
    """At the latest, it is the steady state itself."""
    totals_ns = _totals_ns(record)
    slow_ns = SLOW * median(totals_ns[record.warmup_samples :])
    allowed = max(THRESHOLD, _find_chance(steady, steps))
    for start in range(steady.discarded):
        spread = measure_spread(totals_ns[start : start + steps])
        is_close = abs(compare_mean(spread, steady.total)) <= allowed
        ratio = compare_std(spread, steady.total)
        is_alike = is_close and (ratio is None or ratio <= STD_RATIO)
        if is_alike and totals_ns[start] <= slow_ns:
            return start
    return steady.discarded


def _count_slow(record: Record) -> int:
    totals_ns, warmup = _totals_ns(record), record.warmup_samples
    if len(totals_ns[warmup:]) < MIN_STEPS:
        return 0
    slow_ns = SLOW * median(totals_ns[warmup:])
    is_slow = [ns > slow_ns for ns in totals_ns[:warmup]]
    return is_slow.index(False) if False in is_slow else warmup


def _find_chance(steady: Window, steps: int) -> float:
    """Two standard errors of a difference of means: on a busy machine more than the threshold."""
    return 2 * math.sqrt(2 / steps) * (steady.total.std_s or 0.0) / steady.total.mean_s


def _find_costs(record: Record) -> Costs:
    totals_ns, warmup = _totals_ns(record), record.warmup_samples
    measured_ns = median(totals_ns[warmup:])
    excess_ns = totals_ns[0] - measured_ns
    longest_ns = max(totals_ns[warmup:])
    later_ns = [ns for ns in totals_ns[1:warmup] if ns > longest_ns]
    compilation_s = record.facts.get("compile_s")
    optimizer_s = _find_optimizer_cost(record)
    rest_s = excess_ns / 1e9 - (compilation_s or 0.0) - (optimizer_s or 0.0)
    return Costs(
        first_s=totals_ns[0] / 1e9,
        measured_s=measured_ns / 1e9,
        compilation_s=compilation_s,
        optimizer_s=optimizer_s,
        # Less than nothing: some of what was named was not paid in the first step.
        rest_s=rest_s if rest_s >= 0 else None,
        page_faults=record.first_call_page_faults,
        later_steps=len(later_ns),
        later_s=sum(ns - measured_ns for ns in later_ns) / 1e9,
    )


def _find_optimizer_cost(record: Record) -> float | None:
    samples_ns = record.samples_ns.get(OPTIMIZER)
    if samples_ns is None:
        return None
    first_ns, measured_ns = samples_ns[0], samples_ns[record.warmup_samples :]
    return (first_ns - median(measured_ns)) / 1e9 if first_ns > max(measured_ns) else None


def as_dict(warmup: Warmup) -> dict[str, Any]:
    """For ``--json``: plain numbers with units in their names."""
    record, steady, costs = warmup.record, warmup.steady, warmup.costs
    return {
        **identify(record),
        "steps": warmup.steps,
        "windows": [_window_as_dict(window, steady) for window in warmup.windows],
        "steady": None if steady is None else _window_as_dict(steady, steady),
        "enough": warmup.enough,
        "at_least": warmup.at_least,
        "is_sure": warmup.is_sure,
        "costs": None if costs is None else {**asdict(costs), "excess_s": costs.excess_s},
        "calls_per_sample": record.calls_per_sample[: record.warmup_samples + warmup.steps],
        "warmup_samples": record.warmup_samples,
    }


def _window_as_dict(window: Window, steady: Window | None) -> dict[str, Any]:
    return {
        **asdict(window),
        "mean_change": None if steady is None else compare_mean(window.total, steady.total),
        "std_ratio": None if steady is None else compare_std(window.total, steady.total),
    }
