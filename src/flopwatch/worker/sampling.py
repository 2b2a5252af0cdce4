"""Sampling a group: warm-up, interleaved rounds, and knowing when to stop.

A round takes one sample of every variant, in an order drawn anew, so that drift, background load
and the previous variant's effect on caches hit all alike. There is one loop of rounds from the
first call on:

    round 0                   the very first call, taken while the variant was checked
    round 1, 2, ...           warm-up: a sample is of more and more calls until it is long enough
                              for the clock; then until every variant's samples are steady
    ... the rest              measured, until settled, stalled, or out of budget; a variant that has
                              instruments is run once more with them after each of its samples; now
                              and then all are built anew (`renewal`)

Nothing is thrown away: warm-up samples are stored first and counted.

This module knows neither torch nor processes. Clock, order, caches and failures are handed in, so
that tests get exact results from a fake clock.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flopwatch.analysis.sequential import is_settled
from flopwatch.analysis.statistics import THRESHOLD, estimate_median, is_stalled, is_steady
from flopwatch.devices.base import Clock
from flopwatch.errors import SuiteError
from flopwatch.records.record import Queue, Region, Stop
from flopwatch.settings import SETTLED_INTERVAL, TARGET_INTERVAL, Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.instruments import ClockStopwatch, Reading
from flopwatch.worker.limits import Collector
from flopwatch.worker.rank_times import Run, Share
from flopwatch.worker.renewal import Renewal
from flopwatch.worker.timed_runs import take_sample, time_phases
from flopwatch.worker.turns import Alone, Turns

KEPT = 32
"""Runs of a job that are remembered as they went, for one of them is shown."""
CLOCK_STEPS = 1000
"""A sample lasts about this many steps of the clock, so that its resolution does not matter."""
MIN_SAMPLE_NS = 200_000
"""And about this long, so that short calls do not make a million samples."""
WINDOW_NS = 100_000_000
"""And this long where runs follow each other in a window: its first one begins with an empty queue,
which fills within a millisecond or so."""
PRIME_BELOW_NS = 200_000_000
"""A hot-cache sample shorter than this is preceded by an untimed call: the variant before it has
taken over the caches, and refilling them would be measured. That takes a few milliseconds at the
most, which does not matter for a longer sample."""
MIN_ROUNDS = 12
MIN_MEASURED_S = 0.2
"""Shorter than that, one busy moment of the machine could be all that was seen."""
MAX_WARMUP_ROUNDS = 1000
WARMUP_SHARE = 0.5
"""Warm-up may take this share of the budget; then sampling begins, and says so."""
LEAST_WARMUP_ROUNDS = 7
"""But so many rounds it may take in any case, unless the user has set the budget: with fewer, slow
calls could not be found steady."""


@dataclass(kw_only=True)
class Series:
    """The samples of one variant, growing."""

    variant: str
    workload: Workload
    phase_ns: list[list[float]] = field(default_factory=list)
    """One row a sample: time of one call of each phase."""
    rounds: list[int] = field(default_factory=list)
    calls_per_sample: list[int] = field(default_factory=list)
    calls: int = 1
    """That the next sample is the mean of."""
    has_queue: bool = False
    """Whether the device works through one."""
    queue: list[tuple[float, float] | None] = field(default_factory=list)
    """One a sample: how long the caller took to queue one call, and the device to do what was left
    after the last; None where it was not looked at, or work is done when its call returns."""
    shares: list[list[Share]] = field(default_factory=list)
    """One row a sample: what each rank of a job took; empty rows where there are no ranks."""
    latest: deque[tuple[int, list[Run]]] = field(default_factory=lambda: deque(maxlen=KEPT))
    """The number of a sample, and its last run on each rank."""
    instrumented_ns: list[float] = field(default_factory=list)
    """Whole runs with instruments on, one after each measured sample."""
    regions: dict[str, Region] = field(default_factory=dict)

    def add(
        self,
        round_: int,
        calls: int,
        phase_ns: list[float],
        shares: Sequence[Share] = (),
        queue: tuple[float, float] | None = None,
    ) -> None:
        self.phase_ns.append(phase_ns)
        self.queue.append(queue)
        runs = [share.run for share in shares if share.run is not None]
        if runs:
            self.latest.append((len(self.shares), runs))
        self.shares.append([replace(share, run=None) for share in shares])
        self.rounds.append(round_)
        self.calls_per_sample.append(calls)

    def add_instrumented(self, total_ns: float, readings: Mapping[str, Reading]) -> None:
        calls = {region: reading.calls for region, reading in readings.items()}
        if not self.instrumented_ns:
            self.regions = {region: Region(calls=n, samples_ns=[]) for region, n in calls.items()}
        before = {region: known.calls for region, known in self.regions.items()}
        for region in sorted(before.keys() | calls.keys()):
            if before.get(region) != calls.get(region):
                raise SuiteError(
                    f"region {region!r} ran {before.get(region, 0)} times in one run and "
                    f"{calls.get(region, 0)} times in another; instrument a part that runs equally "
                    "often in all"
                )
        for region, reading in readings.items():
            self.regions[region].samples_ns.append(reading.ns)
        self.instrumented_ns.append(total_ns)

    def describe_queue(self, start: int, end: int) -> Queue | None:
        """Of these samples; None where the device has no queue."""
        if not self.has_queue:
            return None
        known = self.queue[start:end]
        return Queue(
            enqueue_ns=[None if pair is None else round(pair[0], 1) for pair in known],
            drain_ns=[None if pair is None else round(pair[1], 1) for pair in known],
        )

    @property
    def totals_ns(self) -> list[float]:
        return [sum(row) for row in self.phase_ns]

    @property
    def last_sample_ns(self) -> float | None:
        """How long the last sample took, all its runs together."""
        return sum(self.phase_ns[-1]) * self.calls_per_sample[-1] if self.calls_per_sample else None

    def settled_totals_ns(self) -> list[float]:
        """Totals since the number of calls last changed: the ones that can be compared."""
        settled = [
            sum(r)
            for r, n in zip(self.phase_ns, self.calls_per_sample, strict=True)
            if n == self.calls
        ]
        return [total * self.calls for total in settled]

    def grow(self, min_sample_ns: float) -> bool:
        """Raise the number of calls where the last sample was too short; True if it changed."""
        if self.workload.ahead is not None:
            min_sample_ns = max(min_sample_ns, WINDOW_NS)
        per_call_ns = max(sum(self.phase_ns[-1]), 1.0)
        sample_ns = per_call_ns * self.calls
        if sample_ns >= 0.8 * min_sample_ns:
            return False
        # Tenfold at the most: the first calls mislead about how long later ones take.
        wanted = min(min_sample_ns / per_call_ns, 10 * self.calls)
        self.calls = max(self.calls + 1, round(wanted))
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    warmup_rounds: int
    steady: bool
    stop_reason: Stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a group is."""

    rounds: int
    warmup_rounds: int | None
    """None while warm-up goes on."""
    steady: bool | None
    half_width: float | None
    """Of the widest interval; None while unknown."""
    elapsed_s: float
    budget_s: float


class Observer:
    """Follows a sampler. This one does nothing, and raises errors."""

    def begin(self, series: Sequence[Series]) -> None:
        """Sampling starts; these series will grow."""

    def announce(self, variant: str) -> None:
        """The next run is of this variant: the one to blame for a crash."""

    def observe(self, progress: Progress) -> None:
        """A round is over, or warm-up is."""

    def fail(self, variant: str, error: Exception) -> None:
        """A call has raised. If this returns, the variant is dropped and the rest goes on."""
        raise error


class Timing(Protocol):
    """What a sampler needs of a device."""

    clock: Clock

    @property
    def drain(self) -> Callable[[], object] | None:
        """Waits for the device, where that works through a queue; None where calls do their
        work."""

    def evict(self) -> None:
        """Overwrite the caches."""

    def take_shares(self, calls: int) -> Sequence[Share]:
        """What each rank of a job took in the sample just taken, which was of so many runs; nothing
        where there are no ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class First:
    """A variant's very first call."""

    phase_ns: list[float]
    shares: Sequence[Share] = ()


@dataclass(kw_only=True, slots=True)
class Looks:
    """When intervals were looked at while sampling, and how wide they were."""

    next_look: int = MIN_ROUNDS
    widths: dict[int, float | None] = field(default_factory=dict)
    """By number of rounds; None: not known."""

    def is_due(self, taken: int) -> bool:
        return taken >= self.next_look

    def add(self, taken: int, width: float | None) -> None:
        # Looking costs a sort; a tenth more rounds between looks keeps it negligible.
        self.next_look = taken + max(1, taken // 10)
        self.widths[taken] = width

    @property
    def last_width(self) -> float | None:
        return self.widths[max(self.widths)] if self.widths else None


class Sampler:
    """Samples the variants of one group.

    `first_calls` holds calls that were made before, for all variants or none; they become round 0.
    """

    def __init__(
        self,
        workloads: dict[str, Workload],
        *,
        baseline: str,
        settings: Settings,
        target: Timing,
        observer: Observer | None = None,
        first_calls: Mapping[str, First] | None = None,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.series = [
            Series(variant=name, workload=load, has_queue=target.drain is not None)
            for name, load in workloads.items()
        ]
        self.round = 0
        if first_calls:
            for series in self.series:
                first = first_calls[series.variant]
                series.add(self.round, 1, first.phase_ns, first.shares)
            self.round = 1
        self._baseline = baseline
        self._settings = settings
        self._threshold = THRESHOLD
        self._target = target
        self._evict = target.evict if settings.cache == "cold" else None
        self._observer = observer or Observer()
        self._renewal: Renewal | None = None
        self._turns: Turns | Alone = Alone()
        self._now_s = now_s
        self._random = random.Random(settings.seed)
        self._collector = Collector(now_s)
        self._started_s = 0.0
        self._warmup_rounds: int | None = None
        self._steady: bool | None = None
        self._budget_s = settings.budget_s * len(workloads)

    def run(
        self,
        renewal: Renewal | None = None,
        turns: Turns | None = None,
        threshold: float = THRESHOLD,
    ) -> Outcome:
        """Until verdicts are settled for this threshold, unless the settings say otherwise. With
        `turns`, another worker takes every round, too, and the budget is for both."""
        self._renewal, self._threshold = renewal, threshold
        self._turns = turns or Alone()
        self._observer.begin(tuple(self.series))
        with self._collector:
            self._started_s = self._now_s()
            steady = self._warm_up()
            self._steady, self._warmup_rounds = steady, self.round
            self._report(None)  # what is sampled from now on is known to be measured
            stop_reason = self._measure(self.round)
        self._turns.leave()
        return Outcome(warmup_rounds=self._warmup_rounds, steady=steady, stop_reason=stop_reason)

    def _warm_up(self) -> bool:
        min_sample_ns = max(CLOCK_STEPS * self._target.clock.resolution_ns, MIN_SAMPLE_NS)
        least_rounds = LEAST_WARMUP_ROUNDS if self._settings.min_rounds else 0
        while self.series:
            self._turns.begin()
            self._take_round()
            self._report(None)
            # A loop would find in the cache what its first pass has put there.
            grown: list[bool] = []
            if self._settings.cache == "hot":
                grown = [series.grow(min_sample_ns) for series in self.series]
            steady = not any(grown) and all(
                is_steady(series.settled_totals_ns()) for series in self.series
            )
            is_over = self._elapsed_s() > WARMUP_SHARE * self._budget_s
            is_over = self.round >= MAX_WARMUP_ROUNDS or (is_over and self.round >= least_rounds)
            if self._turns.end(is_enough=steady or is_over):
                return steady
        return False

    def _measure(self, first: int) -> Stop:
        started_s = self._elapsed_s()
        looks = Looks()
        if self._renewal is not None:
            self._renewal.start(self._budget_s)
        while self.series:
            self._turns.begin()
            self._renew_if_due(first, self._elapsed_s() - started_s)
            self._take_round()
            taken = self.round - first
            stop: Stop | None = None
            # In turns, the runner decides when there are enough, from the rounds of both workers.
            enough = not self._turns.is_shared and self._elapsed_s() - started_s >= MIN_MEASURED_S
            if enough and looks.is_due(taken):
                stop = self._look(looks, first, taken)
            self._report(looks.last_width)
            if self._elapsed_s() >= self._budget_s and taken >= self._settings.min_rounds:
                stop = stop or "budget"
            if self._turns.end(is_enough=stop is not None):
                return stop or "budget"
        return "budget"

    def _renew_if_due(self, first: int, elapsed_s: float) -> None:
        renewal = self._renewal
        if renewal is not None and renewal.is_due(self.round, first, elapsed_s):
            renewal.renew(self.series, self.round, run_once)

    def _take_round(self) -> None:
        order = list(self.series)
        self._random.shuffle(order)
        for series in order:
            self._observer.announce(series.variant)
            try:
                self._take_sample(series)
                if self._warmup_rounds is not None and series.workload.instrument is not None:
                    self._observer.announce(series.variant)
                    self._take_instrumented(series)
            except Exception as error:
                self._observer.fail(series.variant, error)
                self.series.remove(series)
        self.round += 1
        self._collector.collect_if_due()

    def _take_sample(self, series: Series) -> None:
        workload, calls = series.workload, series.calls
        last_ns = series.last_sample_ns
        if self._evict is None and last_ns is not None and last_ns < PRIME_BELOW_NS:
            run_once(workload)
        clock, drain = self._target.clock, self._target.drain
        taken = take_sample(workload, calls, clock, self._evict, drain, self._now_ns)
        phase_ns = [ns / calls for ns in taken.phase_ns]
        queue = None if drain is None else (taken.enqueue_ns / calls, taken.drain_ns)
        series.add(self.round, calls, phase_ns, self._target.take_shares(calls), queue)

    def _take_instrumented(self, series: Series) -> None:
        """The sample just taken once more, with instruments."""
        workload, calls, clock = series.workload, series.calls, self._target.clock
        assert workload.instrument is not None
        stopwatch = ClockStopwatch(clock)
        with workload.instrument(stopwatch):
            elapsed_ns = time_phases(workload, calls, clock, self._evict)
        readings = stopwatch.read(calls, workload.phases)
        series.add_instrumented(sum(elapsed_ns) / calls, readings)

    @property
    def _is_about_verdicts(self) -> bool:
        """Whether it matters only who is faster."""
        known = {series.variant for series in self.series}
        return self._settings.target_interval is None and self._baseline in known and len(known) > 1

    def _look(self, looks: Looks, first_round: int, taken: int) -> Stop | None:
        """Why no more rounds are needed; None where they are. The width is that of the widest of
        the intervals that must be narrow."""
        times, ratios = split_measured(self.series, self._baseline, first_round)
        reached: Stop
        if self._is_about_verdicts:
            width, target, reached = find_widest(ratios), SETTLED_INTERVAL, "settled"
            is_known = all(is_settled(one, self._threshold) for one in ratios)
        else:
            width, is_known, reached = find_widest([*times, *ratios]), True, "precise"
            target = self._settings.target_interval or TARGET_INTERVAL
        looks.add(taken, width)
        if is_known and width is not None and width <= target:
            return reached
        return "stalled" if is_stalled(looks.widths) else None

    def _report(self, half_width: float | None) -> None:
        self._observer.observe(
            Progress(
                rounds=self.round,
                warmup_rounds=self._warmup_rounds,
                steady=self._steady,
                half_width=half_width,
                elapsed_s=self._elapsed_s(),
                budget_s=self._budget_s,
            )
        )

    def _now_ns(self) -> float:
        return 1e9 * self._now_s()

    def _elapsed_s(self) -> float:
        return self._now_s() - self._started_s


def run_once(workload: Workload) -> None:
    """All phases once, untimed."""
    if workload.reset is not None:
        workload.reset()
    run_phases(workload)


def run_phases(workload: Workload) -> None:
    value: tuple[Any, ...] = ()
    for phase in workload.phases.values():
        value = (phase(*value),)


def split_measured(
    series: Sequence[Series], baseline: str, first_round: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Every variant's times from this round on, and the ratios of the others to the baseline's."""
    totals = {one.variant: one.totals_ns[_index_of_round(one, first_round) :] for one in series}
    base = totals.get(baseline, [])
    ratios = [
        [time / base_time for time, base_time in zip(times, base, strict=True)]
        for variant, times in totals.items()
        if base and variant != baseline
    ]
    return list(totals.values()), ratios


def find_widest(measured: Sequence[Sequence[float]]) -> float | None:
    """Of the intervals of their medians; None where one of them is not known."""
    widths = [estimate_median(values).half_width for values in measured]
    known = [width for width in widths if width is not None]
    return max(known) if len(known) == len(widths) else None


def _index_of_round(series: Series, first_round: int) -> int:
    # One sample a round from round 0 on, so that index and round are the same number.
    return min(first_round, len(series.rounds))
