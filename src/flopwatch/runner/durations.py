"""How long a run will take: estimated before it starts, and again while it goes on.

Before anything is measured, a group is expected to take

    START_S + cases x CASE_S           a worker, and building, checking and profiling small cases
    + OTHER_RUNS x round               the same for large ones: check, reference, memory
    + COMPILE_S + COMPILE_LAYER_S x layers    for each variant that torch.compile compiles
    + RANKS_S x ranks                  where it is a job of several processes
    + sampling                         SAMPLING_S a case, or as many rounds as a verdict needs if
                                       they take longer; at most the budget

where a round is the sum of the declared FLOPs of all variants over the rate of a matmul, measured
just before, and so on a machine that is as busy as it is now.

What is not counted in FLOPs grows with the slowdown: how much longer a run takes than the processor
time that it uses, because other programs have the cores meanwhile. A probe measures it, since the
load that one sees while idle does not say how the cores will be shared: two busy neighbours leave
half of two cores to a run, not nothing. Short operations of several threads suffer more than in
proportion, as all threads need a core at the same time.

What groups really took corrects this, overhead and sampling each by the weighted median of
(taken / expected) of the groups before it, where recent ones, and those of about its size, count
most, and a few of them only correct in part. No correction makes sampling longer than its budget.
Within a group, what its rounds take says how long the rest of them will.

Left out: curves, whose length only the suite knows, and load that changes while the run goes on,
which the correction follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from flopwatch.devices.environment import look_up
from flopwatch.devices.kinds import is_host
from flopwatch.errors import FlopwatchError
from flopwatch.jobs.training_job import read_job
from flopwatch.output.units import format_range, format_rate, plural
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.runner.schedule import Group, count_cases
from flopwatch.settings import Settings
from flopwatch.worker.sampling import Progress

# Measured on two quiet cores, with quick grids of the built-in suites.
SESSION_S = 2.5
"""From the command to the first group: torch is imported, the suite is read, the speed measured."""
START_S = 0.4
CASE_S = 0.15
OTHER_RUNS = 7
"""Of every variant besides those of the rounds. Most of them are slower than usual: the first one,
the reference, two under the profiler."""
EFFICIENCY = 0.7
"""Of the rate of a matmul, that models and layers reach."""
COMPILE_S = 8.0
COMPILE_LAYER_S = 1.0
"""Of a model that is compiled as a whole; a training job's blocks are alike, and compiled once."""
RANKS_S = 1.0
SAMPLING_S = 1.0
"""A case: most verdicts are clear after 0.3 to 2 s."""
WARMUP_ROUNDS = 7
MEASURED_ROUNDS = 12
"""Before the first look at the intervals."""
PRIMED_BELOW_S = 0.2
"""A shorter sample is preceded by an untimed one (`worker.sampling`)."""
AFTER_ROUNDS = 2
"""What comes after sampling: the memory that runs take."""
MOST_SLOWDOWN = 20.0
SMALL_POWER = 1.25
"""What building and checking small cases takes grows with that power of the slowdown: it is much
Python, which needs one core, and many short parallel operations, which need several at once.
Measured were 0.55 to 1.4, mostly above 1.1."""
SAMPLING_POWER = 2
"""More rounds are needed, and each takes longer."""
OVERTIME = 0.2
"""Of the time that a part has taken so far: what it is expected to take at the least."""

TINY_S = 1e-3
"""Shorter is as good as nothing."""
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
SIMILAR_SLOWDOWN = 2.0
"""Earlier records count if the machine was as busy then as it is now, within this factor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Of this machine at this moment."""

    rates: Mapping[str, float]
    """FLOP/s of a matmul by dtype; empty where none is needed."""
    slowdown: float = 1.0
    """A run's time over what it would be without other programs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    """Of a group, in parts: what it takes, or is expected to."""

    overhead_s: float
    """All but sampling: a worker, building, checking, memory."""
    sampling_s: float
    budget_s: float = math.inf
    """The most that sampling takes, unless fewer rounds than the least fit into it."""
    least_s: float = 0.0
    """What the rounds take that are taken in any case."""
    least_rounds: int = 0
    """Of these, those after warm-up."""
    instrumented: float = 1.0
    """What a measured round takes, relative to one of warm-up."""

    @property
    def total_s(self) -> float:
        return self.overhead_s + self.sampling_s

    def correct(self, overhead: float, sampling: float) -> Duration:
        """Multiplied by these factors, where the budget allows it."""
        least_s = self.least_s * sampling
        return replace(
            self,
            overhead_s=self.overhead_s * overhead,
            sampling_s=min(self.sampling_s * sampling, max(self.budget_s, least_s)),
            least_s=least_s,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A group that was measured: what it was expected to take, and took."""

    expected: Duration
    taken: Duration


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Of the groups that are left."""

    cases: int
    prior: Mapping[str, Duration]
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
        for group in self.prior:
            if self.budget_s is not None and total_s >= self.budget_s:
                break
            total_s += self.expect_group(group).total_s
        return total_s

    def expect_group(self, group: str) -> Duration:
        prior, seen = self.prior[group], self.observations
        return prior.correct(
            overhead=find_correction(
                prior.overhead_s, [(o.expected.overhead_s, o.taken.overhead_s) for o in seen]
            ),
            sampling=find_correction(
                prior.sampling_s, [(o.expected.sampling_s, o.taken.sampling_s) for o in seen]
            ),
        )

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
            f"{plural(self.cases, 'case')} in {plural(len(self.prior), 'group')}, "
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
    speed: Speed,
    *,
    background_share: float = 0.0,
    cores: int | None = None,
    history: Iterable[Record] = (),
    budget_s: float | None = None,
) -> Estimate:
    """Of groups with these settings, at this speed.

    `background_share` is what other programs take of all `cores`; `history` holds earlier records
    of the suite on this machine; `budget_s` is the run's.
    """
    return Estimate(
        cases=count_cases(groups),
        prior={g.id: estimate_group(g, settings, speed) for g in groups},
        rates=speed.rates,
        background_share=background_share,
        observations=observe_records(history, settings, speed, cores),
        budget_s=budget_s,
    )


def update(estimate: Estimate, group: Group, taken: Duration, *, was_measured: bool) -> Estimate:
    """The estimate after that group, which has taken so long. Where nothing was measured, since all
    of it failed or was skipped, other groups are not expected to be as short."""
    observed = Observation(expected=estimate.prior[group.id], taken=taken)
    return replace(
        estimate,
        cases=estimate.cases - len(group.variants),
        prior={id_: prior for id_, prior in estimate.prior.items() if id_ != group.id},
        observations=[*estimate.observations, *([observed] if was_measured else [])],
        budget_s=None if estimate.budget_s is None else estimate.budget_s - taken.total_s,
        extra_s=0.0,
    )


def expect_left_s(
    expected: Duration, running_s: float, progress: Progress | None = None, since_s: float = 0.0
) -> float:
    """Of a group that was expected to take so long and has run for so long. Of its sampling,
    `progress` is the latest that is known, since so long."""
    if progress is None or not progress.rounds:
        overhead_s = max(expected.overhead_s - running_s, OVERTIME * running_s)
        return overhead_s + expected.sampling_s
    warmup_rounds = progress.warmup_rounds or max(WARMUP_ROUNDS, progress.rounds + 1)
    ratio = expected.instrumented
    measured = max(progress.rounds - warmup_rounds, 0)
    round_s = progress.elapsed_s / (min(progress.rounds, warmup_rounds) + ratio * measured)
    least_s, enough_s = (
        round_s * (warmup_rounds + ratio * rounds)
        for rounds in (expected.least_rounds, MEASURED_ROUNDS)
    )
    sampling_s = min(
        max(expected.sampling_s, enough_s, (1 + OVERTIME) * progress.elapsed_s),
        max(progress.budget_s, least_s),
    )
    return max(sampling_s - progress.elapsed_s - since_s, 0.0) + AFTER_ROUNDS * round_s


def find_correction(prior_s: float, observed: Sequence[tuple[float, float]]) -> float:
    """The factor for what was expected to take so long, where this was expected, and that was
    taken, the latest last.

    >>> find_correction(1.0, [])
    1.0
    >>> round(find_correction(1.0, [(1.0, 4.0)] * 3), 2)
    3.52
    """
    weighted: list[tuple[float, float]] = []
    for age, (expected_s, taken_s) in enumerate(reversed(observed)):
        doublings = abs(math.log2(max(prior_s, TINY_S) / max(expected_s, TINY_S)))
        ratio = max(taken_s, TINY_S) / max(expected_s, TINY_S)
        weighted.append((math.log(ratio), AGING**age / (1 + doublings)))
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
    """Of a run during which other programs took that share of all cores: its threads had the rest.
    On a GPU it has nearly all of its own.

    >>> [find_slowdown(0.5, Settings(threads=threads), 8) for threads in (8, 4, 1)]
    [2.0, 1.0, 1.0]
    """
    if not is_host(settings.device):
        return 1.0
    left = (1 - background_share) * (cores or settings.threads)
    return min(max(1.0, settings.threads / max(left, 1e-9)), MOST_SLOWDOWN)


def estimate_group(group: Group, settings: Settings, speed: Speed) -> Duration:
    """What it takes to measure a group, before any is measured."""
    cases = len(group.variants)
    runs_s = {v: estimate_run_s(group.flops.get(v, {}), speed.rates) for v in group.variants}
    compiling_s = sum(_estimate_compile_s(group, variant) for variant in group.variants)
    small_s = START_S + CASE_S * cases
    fixed_s = compiling_s + RANKS_S * (group.ranks or 0)
    warmup_s = sum(run_s if run_s >= PRIMED_BELOW_S else 2 * run_s for run_s in runs_s.values())
    measured_s = warmup_s + sum(s for v, s in runs_s.items() if _has_instruments(group, v))
    has_instruments = any(_has_instruments(group, variant) for variant in group.variants)

    def take_s(rounds: int) -> float:
        return WARMUP_ROUNDS * warmup_s + rounds * measured_s

    settling_s = SAMPLING_S * speed.slowdown**SAMPLING_POWER * cases
    wanted_s = max(settling_s, take_s(MEASURED_ROUNDS))
    # Where the user has set the budget, no number of rounds is guaranteed.
    least_s = take_s(settings.min_rounds) if settings.min_rounds else 2 * measured_s
    budget_s = settings.budget_s * cases
    return Duration(
        overhead_s=speed.slowdown**SMALL_POWER * small_s
        + speed.slowdown * fixed_s
        + OTHER_RUNS * sum(runs_s.values()),
        sampling_s=min(wanted_s, max(budget_s, least_s)),
        budget_s=budget_s,
        least_s=least_s,
        least_rounds=settings.min_rounds,
        instrumented=measured_s / warmup_s if warmup_s else 1.0 + has_instruments,
    )


def _is_compiled(group: Group, variant: str) -> bool:
    job = group.jobs.get(variant)
    return "compiled" in variant.split("+") or bool(job and job.get("compiled"))


def _estimate_compile_s(group: Group, variant: str) -> float:
    if not _is_compiled(group, variant):
        return 0.0
    job = group.jobs.get(variant)
    is_whole_model = job is not None and "model" in job and group.ranks is None
    layers = read_job(job).shape.layers if job and is_whole_model else 0
    return COMPILE_S + COMPILE_LAYER_S * layers


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
    history: Iterable[Record], settings: Settings, speed: Speed, cores: int | None
) -> list[Observation]:
    """What groups took in earlier runs with such settings, when the machine was about as busy."""
    observations: list[Observation] = []
    before: Record | None = None
    for records in _list_groups(history):
        first, last = records[0], records[-1]
        slowdown = find_slowdown(_read_share(last), first.settings, cores)
        if _is_alike(first, settings) and _is_similar(slowdown, speed.slowdown):
            # As fast as now, but for the load.
            factor = speed.slowdown / slowdown
            rates = {dtype: rate * factor for dtype, rate in speed.rates.items()}
            expected = estimate_group(
                _make_group(records), first.settings, Speed(rates=rates, slowdown=slowdown)
            )
            taken = _find_duration(records, before, expected)
            observations.append(Observation(expected=expected, taken=taken))
        before = last
    return observations


def _find_duration(
    records: Sequence[Record], before: Record | None, expected: Duration
) -> Duration:
    """Records say how long they were sampled; the time between the end of the group before and that
    of this one says how long the rest took. Of a run's first group it is not known."""
    sampling_s = sum(_count_sampled_s(record) for record in records)
    overhead_s = expected.overhead_s
    if before is not None and before.run_id == records[0].run_id:
        ended, began = (_read_time(record) for record in (records[-1], before))
        if ended is not None and began is not None:
            overhead_s = max((ended - began).total_seconds() - sampling_s, TINY_S)
    return Duration(overhead_s=overhead_s, sampling_s=sampling_s)


def _read_time(record: Record) -> datetime | None:
    try:
        return datetime.fromisoformat(record.measured_at)
    except ValueError:
        return None


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


def _list_groups(records: Iterable[Record]) -> list[list[Record]]:
    """Those of which all was measured."""
    groups = [list(group) for _, group in groupby(records, lambda r: (r.run_id, r.group_id))]
    return [g for g in groups if all(r.status == "ok" and r.rounds for r in g)]


def _read_share(record: Record) -> float:
    share: float | None = look_up(record.environment, "load.background_share")
    return share or 0.0


def _is_alike(record: Record, settings: Settings) -> bool:
    """Whether it was sampled in the same way."""
    return all(getattr(record.settings, name) == getattr(settings, name) for name in SAME_SETTINGS)


def _is_similar(then: float, now: float) -> bool:
    return max(then, now) <= SIMILAR_SLOWDOWN * min(then, now)
