"""How long a run will take: estimated before it starts, and again after every group.

Before anything is measured, a group is expected to take

    START_S + cases x CASE_S           a worker, and building, checking and profiling small cases
    + OTHER_RUNS x round               the same for large ones: check, reference, memory
    + COMPILE_S                        for each variant that torch.compile compiles
    + RANKS_S x ranks                  where it is a job of several processes
    + sampling                         SAMPLING_S a case, or as many rounds as a verdict needs if
                                       they take longer; at most the budget

where a round is the sum of the declared FLOPs of all variants over the rate of a matmul, measured
just before, and so on a machine that is as busy as it is now. What is not counted in FLOPs is
multiplied by the slowdown: a run gets the cores that other programs leave. On a busy machine
sampling is also longer because times vary, by about the square of the slowdown.

What groups really took corrects this: the expected time of a group is multiplied by the weighted
median of (taken / expected) of the groups before it, where recent ones, and those of about its
size, count most, and a few of them only correct in part. Left out: curves, whose length only the
suite knows, and load that changes while the run goes on, which the correction follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from flopwatch.devices.environment import look_up
from flopwatch.devices.kinds import is_host
from flopwatch.errors import FlopwatchError
from flopwatch.output.units import format_range, format_rate, plural
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.runner.schedule import Group, count_cases
from flopwatch.settings import Settings

# Measured on two quiet cores, with quick grids of the built-in suites.
SESSION_S = 2.0
"""From the command to the first group: torch is imported, the suite is read."""
START_S = 0.4
CASE_S = 0.15
OTHER_RUNS = 7
"""Of every variant besides those of the rounds. Most of them are slower than usual: the first one,
the reference, two under the profiler."""
EFFICIENCY = 0.7
"""Of the rate of a matmul, that models and layers reach."""
COMPILE_S = 8.0
RANKS_S = 1.0
SAMPLING_S = 1.0
"""A case: most verdicts are clear after 0.3 to 2 s."""
WARMUP_ROUNDS = 7
MEASURED_ROUNDS = 12
"""Before the first look at the intervals."""
PRIMED_BELOW_S = 0.2
"""A shorter sample is preceded by an untimed one (`worker.sampling`)."""
MOST_SLOWDOWN = 10.0

FALLBACK = "float32"
"""Its rate is taken for a dtype that has none of its own: for int8, say."""

AGING = 0.8
"""What a group counts, relative to the one after it: load changes during a run."""
PRIOR_WEIGHT = 0.25
"""What the estimate before the run counts, relative to one group of the same size: groups of a run
differ by about a third, runs from their estimates by a factor of two, (0.35 / 0.7)^2."""
SPREAD = 1.5
"""How far off the estimate before the run may be, as a factor."""
NARROW = 1.25
"""An interval that is narrower is not worth showing."""
SAME_SETTINGS = ("device", "threads", "cache", "target_interval")
"""Those that decide how long sampling takes, besides the budget, which is counted with."""
MACHINE = "machine.machine_id"
SIMILAR_LOAD = 1.5
"""Earlier records count if the machine was as busy then as it is now, within this factor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A group that was measured: what it was expected to take, and took."""

    expected_s: float
    taken_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Of the groups that are left."""

    cases: int
    prior_s: Mapping[str, float]
    """By group, what it was expected to take before the run."""
    rates: Mapping[str, float]
    """FLOP/s by dtype that it counts with; empty where no FLOPs are declared."""
    background_share: float = 0.0
    """Of all cores' time, what other programs take."""
    observations: Sequence[Observation] = ()
    """The latest last."""
    budget_s: float | None = None
    """What is left of the run's."""
    extra_s: float = 0.0
    """Besides the groups."""

    @property
    def expected_s(self) -> float:
        """A run's budget bounds sampling, and what is begun after it: a group that is begun within
        it is also built and checked, however long that takes."""
        total_s = self.extra_s
        for group in self.prior_s:
            if self.budget_s is not None and total_s >= self.budget_s:
                break
            total_s += self.expect_group_s(group)
        return total_s

    def expect_group_s(self, group: str) -> float:
        prior_s = self.prior_s[group]
        return prior_s * find_correction(prior_s, self.observations)

    @property
    def spread(self) -> float:
        """The factor by which it may be wrong."""
        return math.exp(math.log(SPREAD) / math.sqrt(1 + len(self.observations)))

    @property
    def range_s(self) -> tuple[float, float]:
        expected_s = self.expected_s
        longest_s = expected_s * self.spread
        if self.budget_s is not None:
            longest_s = min(longest_s, max(self.budget_s, expected_s))
        return expected_s / self.spread, longest_s

    def __str__(self) -> str:
        rates = ", ".join(f"{d} {format_rate(rate, 'FLOP/s')}" for d, rate in self.rates.items())
        return (
            f"{plural(self.cases, 'case')} in {plural(len(self.prior_s), 'group')}, "
            f"{self.describe()}" + (f" (a plain matmul here: {rates})" if rates else "")
        )

    def describe(self, passed_s: float = 0.0) -> str:
        """In words, when so much of it has passed."""
        ends_s = self.range_s if self.spread >= NARROW else (self.expected_s, self.expected_s)
        low_s, high_s = (max(end_s - passed_s, 1.0) for end_s in ends_s)
        return format_range(low_s, high_s)


def estimate_run(
    groups: Sequence[Group],
    settings: Settings,
    rates: Mapping[str, float],
    *,
    background_share: float = 0.0,
    cores: int | None = None,
    history: Iterable[Record] = (),
    budget_s: float | None = None,
) -> Estimate:
    """Of groups with these settings, at these rates (FLOP/s by dtype, as busy as the machine is).

    `background_share` is what other programs take of all `cores`; `history` holds earlier records
    of the suite on this machine; `budget_s` is the run's.
    """
    slowdown = find_slowdown(background_share, settings, cores)
    observations = [
        observe_records(records, rates, slowdown)
        for records in _list_measured_groups(history)
        if _was_alike(records[0], settings, slowdown, cores)
    ]
    return Estimate(
        cases=count_cases(groups),
        prior_s={g.id: estimate_group_s(g, settings, rates, slowdown) for g in groups},
        rates=rates,
        background_share=background_share,
        observations=observations,
        budget_s=budget_s,
    )


def update(estimate: Estimate, group: Group, taken_s: float, *, was_measured: bool) -> Estimate:
    """The estimate after that group, which has taken so long. Where nothing was measured, since all
    of it failed or was skipped, other groups are not expected to be as short."""
    observed = Observation(expected_s=estimate.prior_s[group.id], taken_s=max(taken_s, 1e-3))
    return replace(
        estimate,
        cases=estimate.cases - len(group.variants),
        prior_s={id_: s for id_, s in estimate.prior_s.items() if id_ != group.id},
        observations=[*estimate.observations, *([observed] if was_measured else [])],
        budget_s=None if estimate.budget_s is None else estimate.budget_s - taken_s,
        extra_s=0.0,
    )


def find_correction(prior_s: float, observations: Sequence[Observation]) -> float:
    """The factor for a group that was expected to take so long.

    >>> find_correction(1.0, [])
    1.0
    >>> round(find_correction(1.0, [Observation(expected_s=1.0, taken_s=4.0)] * 3), 2)
    3.5
    """
    weighted: list[tuple[float, float]] = []
    for age, seen in enumerate(reversed(observations)):
        doublings = abs(math.log2(prior_s / seen.expected_s))
        weighted.append((math.log(seen.taken_s / seen.expected_s), AGING**age / (1 + doublings)))
    if not weighted:
        return 1.0
    weight = sum(each for _, each in weighted)
    return math.exp(_find_weighted_median(weighted) * weight / (weight + PRIOR_WEIGHT))


def _find_weighted_median(weighted: Sequence[tuple[float, float]]) -> float:
    half, below = sum(weight for _, weight in weighted) / 2, 0.0
    for value, weight in sorted(weighted):
        below += weight
        if below >= half:
            return value
    raise AssertionError("there is a value")


def find_slowdown(background_share: float, settings: Settings, cores: int | None) -> float:
    """By what factor a run is slower where other programs take that share of all cores: its threads
    have the rest. On a GPU it has nearly all of its own.

    >>> [find_slowdown(0.5, Settings(threads=threads), 8) for threads in (8, 4, 1)]
    [2.0, 1.0, 1.0]
    """
    if not is_host(settings.device):
        return 1.0
    left = (1 - background_share) * (cores or settings.threads)
    return min(max(1.0, settings.threads / max(left, 1e-9)), MOST_SLOWDOWN)


def estimate_group_s(
    group: Group, settings: Settings, rates: Mapping[str, float], slowdown: float
) -> float:
    """What it takes to measure a group, before any is measured."""
    overhead_s, sampling_s = _estimate_parts(group, settings, rates, slowdown)
    return overhead_s + sampling_s


def _estimate_parts(
    group: Group, settings: Settings, rates: Mapping[str, float], slowdown: float
) -> tuple[float, float]:
    """All but sampling, and sampling."""
    cases = len(group.variants)
    runs_s = {v: estimate_run_s(group.flops.get(v, {}), rates) for v in group.variants}
    compiled = sum(_is_compiled(group, variant) for variant in group.variants)
    fixed_s = START_S + CASE_S * cases + COMPILE_S * compiled + RANKS_S * (group.ranks or 0)
    overhead_s = slowdown * fixed_s + OTHER_RUNS * sum(runs_s.values())
    warmup_s = sum(run_s if run_s >= PRIMED_BELOW_S else 2 * run_s for run_s in runs_s.values())
    measured_s = warmup_s + sum(s for v, s in runs_s.items() if _has_instruments(group, v))

    def take_s(rounds: int) -> float:
        return WARMUP_ROUNDS * warmup_s + rounds * measured_s

    wanted_s = max(SAMPLING_S * slowdown**2 * cases, take_s(MEASURED_ROUNDS))
    # Where the user has set the budget, no number of rounds is guaranteed.
    least_s = take_s(settings.min_rounds) if settings.min_rounds else 2 * measured_s
    return overhead_s, min(wanted_s, max(settings.budget_s * cases, least_s))


def _is_compiled(group: Group, variant: str) -> bool:
    job = group.jobs.get(variant)
    return "compiled" in variant.split("+") or bool(job and job.get("compiled"))


def _has_instruments(group: Group, variant: str) -> bool:
    """Whether each sample is taken twice: of models that are neither compiled nor recomputed."""
    job = group.jobs.get(variant)
    is_model = job is not None and "model" in job and group.ranks is None
    return is_model and not _is_compiled(group, variant) and "recompute" not in variant


def estimate_run_s(flops: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """Of one run of all phases; 0 where nothing is known.

    >>> estimate_run_s({"float32": 3e9, "int8": 0.5e9}, {"float32": 1e9, "bfloat16": 5e8})
    5.0
    """
    if FALLBACK not in rates:
        return 0.0
    matmul_s = sum(count / rates.get(dtype, rates[FALLBACK]) for dtype, count in flops.items())
    return matmul_s / EFFICIENCY


def list_dtypes(groups: Sequence[Group]) -> list[str]:
    """The dtypes whose rates an estimate needs; none where no FLOPs are declared."""
    counted = {dtype for group in groups for by in group.flops.values() for dtype in by}
    floats = {dtype for dtype in counted if dtype.startswith(("float", "bfloat"))}
    return [FALLBACK, *sorted(floats - {FALLBACK})] if counted else []


def read_history(path: Path, environment: Mapping[str, Any]) -> list[Record]:
    """Earlier records of this machine; none where they cannot be read, of which the run itself will
    say more."""
    if not path.is_file():
        return []
    try:
        records = read(path, skip_corrupt=True).records
    except (FlopwatchError, OSError):
        return []
    here = look_up(environment, MACHINE)
    return [record for record in records if look_up(record.environment, MACHINE) == here]


def observe_records(
    records: Sequence[Record], rates: Mapping[str, float], slowdown: float
) -> Observation:
    """From a group's records. They say how long it was sampled, but not how long it was built and
    checked."""
    group, settings = _make_group(records), records[0].settings
    overhead_s, sampling_s = _estimate_parts(group, settings, rates, slowdown)
    return Observation(
        expected_s=overhead_s + sampling_s,
        taken_s=overhead_s + sum(_count_sampled_s(record) for record in records),
    )


def _count_sampled_s(record: Record) -> float:
    total_ns = sum(record.instrumented_ns)
    rows = zip(*record.samples_ns.values(), record.calls_per_sample, strict=True)
    for number, (*phases_ns, calls) in enumerate(rows):
        if number:  # the very first call is a part of the check
            run_ns = sum(phases_ns)
            is_primed = record.settings.cache == "hot" and run_ns * calls < PRIMED_BELOW_S * 1e9
            total_ns += run_ns * (calls + is_primed)
    return total_ns / 1e9


def _make_group(records: Sequence[Record]) -> Group:
    first = records[0]
    return Group(
        suite=first.suite,
        baseline=first.baseline,
        params=first.params,
        variants=tuple(record.variant for record in records),
        flops={record.variant: _sum_flops(record) for record in records},
        jobs={record.variant: record.job for record in records},
    )


def _sum_flops(record: Record) -> dict[str, float]:
    sums: dict[str, float] = {}
    for phase, by_dtype in record.flops.items():
        if "/" not in phase:  # a region's are in its phase's already
            for dtype, count in by_dtype.items():
                sums[dtype] = sums.get(dtype, 0.0) + count
    return sums


def _list_measured_groups(records: Iterable[Record]) -> list[list[Record]]:
    sampled = [record for record in records if record.status == "ok" and record.rounds]
    return [list(group) for _, group in groupby(sampled, lambda r: (r.run_id, r.group_id))]


def _was_alike(record: Record, settings: Settings, slowdown: float, cores: int | None) -> bool:
    """Whether it was sampled in the same way, on a machine as busy as it is now."""
    then, share = record.settings, look_up(record.environment, "load.background_share")
    slowdown_then = find_slowdown(share or 0.0, then, cores)
    return all(getattr(then, name) == getattr(settings, name) for name in SAME_SETTINGS) and (
        max(slowdown, slowdown_then) <= SIMILAR_LOAD * min(slowdown, slowdown_then)
    )
