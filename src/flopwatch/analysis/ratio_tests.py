"""What samples say about a ratio of times, at any confidence, and how sure many such ratios are
together.

Evidence is of three kinds. *Paired*: both sides were measured in the same rounds; the ratio is the
median of the ratios within rounds, and its interval follows from their order, whatever their
distribution (see `statistics`). *Separate*: the sides are different runs; the ratio is that of
their medians, and its interval is by bootstrap. Blocks of neighbouring samples are drawn, not
single ones, so that slow changes of the machine widen the interval. *In turns*: the sides are two
revisions, each in a process of its own, whose rounds alternated. Every visit, a pair of processes,
gives one ratio, the median of those within rounds; the interval follows from how visits scatter,
since tensors lie elsewhere in each process.

Two runs of the same code differ by more than the scatter inside each of them shows: tensors lie
elsewhere in memory, other processes use the machine. With several runs of the same cases on a side,
that is measured: the scatter of a case's medians, over all cases together. With one run on each
side it is taken from the cases themselves: half of them at least have changed alike, or not at all,
so that the half whose ratios lie closest together scatters by what differs from run to run. What
lies far out to one side of that half is left out: it may have changed. Where cases lie far out to
both sides, faster and slower, nothing is left out: code that changes goes one way, and a machine
that places tensors luckily or not, both. With fewer than 8 cases it is not known; the threshold of
a verdict must stand for it then.

Where many ratios are judged at once, some would look different by chance. The expected share of
such false alarms among all that are called faster or slower is kept small (Benjamini and Hochberg):
at 1 % inside runs, and at 2 % between them, where less is known. `choose_confidence` finds the one
confidence at which all intervals are to be read. If nothing differs at all, that share is also the
chance of any alarm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

from flopwatch.analysis.statistics import (
    Estimate,
    effective_count,
    estimate_median,
    fewest_samples,
    measured_totals_ns,
    median,
    ratios_by_round,
)
from flopwatch.records.record import Record

RESAMPLES = 200
MOST_BLOCKS = 12
"""Fewer and longer ones see slower changes; more of them make the interval itself less certain."""
MOST_SAMPLES = 2000
"""Of a run, for the bootstrap: more only cost time. Neighbours are averaged."""
MOST_ASKED = {"sample": 100_000, "run": 1000}
"""More is not worth suggesting."""

FEWEST_CASES = 8
FEWEST_REPEATS = 4
"""Degrees of freedom, over all cases."""
WEIGHT_OF_ALL = 4
"""Degrees of freedom of the spread of all cases, against a case's own repeats: with as many of its
own, a case counts half by itself and half as all cases do."""
NORMAL_DEVIATION = 1.4826
"""From the median deviation to the standard deviation, for a normal distribution."""

OUTLYING = 2.5
"""Deviations from the middle at which a case is taken to have changed."""
FAR_OUT = 3.5
"""And at which it cannot be chance."""
CLIPPED = 1.06
"""What leaving those out takes off the deviation of a normal distribution."""

Source = Literal["repeats", "cases", "visits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """What would settle an unclear comparison."""

    count: int
    unit: Literal["sample", "run"]
    """A sample on each side, or a whole run on each side."""
    at_least: bool = False
    """Whether it only makes an interval possible, which may still be too wide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    ratios: Sequence[float]
    """Of times, new over old, in order of the rounds."""

    def at(self, confidence: float) -> Estimate:
        return estimate_median(self.ratios, confidence)

    def find_missing(self, target: float, confidence: float) -> Missing | None:
        """What makes the interval reach no farther than `target` to either side; None: more than
        is worth suggesting (`MOST_ASKED`)."""
        count, ratio = len(self.ratios), self.at(confidence)
        if count < 2:  # one value of each side, as published ones are: there are no more
            return None
        if ratio.low is None or ratio.high is None:
            needed = fewest_samples(confidence)
            return Missing(count=max(1, needed - count), unit="sample", at_least=True)
        # In logarithms: an interval from a quarter to four times is as wide to both sides.
        reach = max(math.log(ratio.high / ratio.value), math.log(ratio.value / ratio.low))
        return _ask_for(count * (reach / math.log1p(target)) ** 2 - count, "sample")


@dataclass(frozen=True, kw_only=True, slots=True)
class Separate:
    log_ratio: float
    """Of the times, new over old."""
    within: float
    """Standard error of it, by what is seen inside the runs."""
    between: float
    """And by what differs from run to run."""
    freedom: float
    """Degrees of freedom of the two together."""
    samples: int
    """Of the side that has fewer."""
    runs: int = 1
    """Likewise."""

    @property
    def error(self) -> float:
        return math.hypot(self.within, self.between)

    def at(self, confidence: float) -> Estimate:
        reach = student_quantile((1 + confidence) / 2, self.freedom) * self.error
        value = math.exp(self.log_ratio)
        return Estimate(
            value=value,
            low=value * math.exp(-reach),
            high=value * math.exp(reach),
            samples=self.samples,
        )

    def find_missing(self, target: float, confidence: float) -> Missing | None:
        """As for `Paired`. More samples do not help against what differs from run to run: only more
        runs do."""
        allowed = math.log1p(target) / student_quantile((1 + confidence) / 2, self.freedom)
        if allowed <= 2 * self.between:
            return _ask_for(self.runs * (self.error / allowed) ** 2 - self.runs, "run")
        needed = self.samples * self.within**2 / (allowed**2 - self.between**2)
        return _ask_for(needed - self.samples, "sample")


def _ask_for(count: float, unit: Literal["sample", "run"]) -> Missing | None:
    return None if count > MOST_ASKED[unit] else Missing(count=max(1, math.ceil(count)), unit=unit)


Evidence = Paired | Separate


def choose_confidence(evidence: Sequence[Evidence], false_share: float) -> float:
    """At which all intervals are to be read, so that of those that exclude 1 no more than the given
    share is expected to do so by chance.

    With n of m intervals excluding 1, each is to be read at 1 - share * n / m. The largest n for
    which that is true is found from above.
    """
    discoveries = len(evidence)
    while discoveries > 1:
        confidence = 1 - false_share * discoveries / len(evidence)
        found = sum(_excludes_one(one.at(confidence)) for one in evidence)
        if found >= discoveries:
            return confidence
        discoveries = found
    return 1 - false_share / max(1, len(evidence))


def _excludes_one(ratio: Estimate) -> bool:
    return ratio.low is not None and ratio.high is not None and not ratio.low <= 1 <= ratio.high


def bootstrap_error(logs: Sequence[float], seed: int = 0) -> float | None:
    """Standard error of the median of these ordered values; None where there are too few."""
    import numpy as np  # not above: most commands do not need it, and it takes a tenth of a second

    values = np.asarray(logs, dtype=float)
    if len(values) < 4:
        return None
    if len(values) > MOST_SAMPLES:
        values = np.array([part.mean() for part in np.array_split(values, MOST_SAMPLES)])
    count = len(values)
    # A block is at least as long as neighbours stay correlated, so that it is drawn whole.
    dependent = math.ceil(count / effective_count(values.tolist()))
    length = max(1, dependent, count // MOST_BLOCKS)
    blocks = math.ceil(count / length)
    starts = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, blocks))
    places = (starts[:, :, None] + np.arange(length)) % count
    medians = np.median(values[places.reshape(RESAMPLES, -1)[:, :count]], axis=1)
    return float(medians.std(ddof=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """One case in one run."""

    log_time: float
    """Of the median time in ns, or of its ratio to the baseline's."""
    error: float | None
    """Standard error of that by the samples of this run; None where they are too few."""
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """The takes of one case, one a run."""

    old: Sequence[Take]
    new: Sequence[Take]

    @property
    def log_old(self) -> float:
        return _mean([take.log_time for take in self.old])

    @property
    def log_new(self) -> float:
        return _mean([take.log_time for take in self.new])

    @property
    def log_ratio(self) -> float:
        return self.log_new - self.log_old

    @property
    def repeats(self) -> tuple[float, int]:
        """Squared deviations of the runs from their side's mean, without what the scatter inside
        them explains, and degrees of freedom."""
        squares = sum((take.log_time - self.log_old) ** 2 for take in self.old)
        squares += sum((take.log_time - self.log_new) ** 2 for take in self.new)
        freedom = len(self.old) + len(self.new) - 2
        inside = _mean([(take.error or 0.0) ** 2 for take in (*self.old, *self.new)])
        return squares - freedom * inside, freedom

    @property
    def within(self) -> float | None:
        """Standard error of the ratio by what is seen inside the runs."""
        errors = [_error_of_mean(self.old), _error_of_mean(self.new)]
        known = [error for error in errors if error is not None]
        return math.hypot(*known) if len(known) == 2 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How much a case differs from run to run, as the standard deviation of its log time."""

    deviation: float
    freedom: float
    source: Source


def take(record: Record, baseline: Record | None = None) -> Take:
    """Of its times, or where a baseline is given, of the ratios to it within rounds."""
    if baseline is None:
        logs = [math.log(ns) for ns in measured_totals_ns(record)]
    else:
        logs = [math.log(ratio) for ratio in ratios_by_round(record, baseline)]
    return Take(log_time=median(logs), error=bootstrap_error(logs), samples=len(logs))


def find_spread(cases: Sequence[Sides]) -> Spread | None:
    return _from_repeats(cases) or _from_cases(cases)


def weigh(sides: Sides, spread: Spread | None) -> Separate | None:
    """What the takes of a case say about its ratio; None where there are too few samples."""
    within = sides.within
    if within is None:
        return None
    deviation, freedom = (0.0, 0.0) if spread is None else _find_own_deviation(sides, spread)
    between = deviation * math.sqrt(1 / len(sides.old) + 1 / len(sides.new))
    samples = [sum(take.samples for take in takes) for takes in (sides.old, sides.new)]
    inside = [min(MOST_BLOCKS, take.samples) - 1 for take in (*sides.old, *sides.new)]
    return Separate(
        log_ratio=sides.log_ratio,
        within=within,
        between=between,
        freedom=_join_freedom([(within, float(sum(inside))), (between, freedom)]),
        samples=min(samples),
        runs=min(len(sides.old), len(sides.new)),
    )


def weigh_visits(cases: Sequence[Sequence[Take]]) -> list[Separate | None]:
    """For cases that were measured in turns, each with one take of its ratio a visit: what they say
    about it; None where there are too few samples. A few visits say little about how much a case
    scatters; what other cases scatter by is averaged in."""
    found = [(_sum_squares(takes), len(takes) - 1) for takes in cases]
    all_squares, all_freedom = (sum(column) for column in zip(*found, strict=True))
    evidence: list[Separate | None] = []
    for takes, (squares, freedom) in zip(cases, found, strict=True):
        within = _error_of_mean(takes)
        if within is None:
            evidence.append(None)
            continue
        others = all_freedom - freedom
        weight = min(WEIGHT_OF_ALL, others)
        of_others = (all_squares - squares) / others if others else 0.0
        known = freedom + weight
        squared = (squares + weight * of_others) / known if known else 0.0
        between = math.sqrt(max(0.0, squared / len(takes) - within**2))
        inside = float(sum(min(MOST_BLOCKS, take.samples) - 1 for take in takes))
        evidence.append(
            Separate(
                log_ratio=_mean([take.log_time for take in takes]),
                within=within,
                between=between,
                freedom=min(inside, float(known)) if known else inside,
                samples=sum(take.samples for take in takes),
                runs=len(takes),
            )
        )
    return evidence


def find_visit_spread(cases: Sequence[Sequence[Take]]) -> Spread | None:
    """How much a ratio differs from visit to visit, over all cases; None where each had one."""
    freedom = sum(len(takes) - 1 for takes in cases)
    if not freedom:
        return None
    squares = sum(_sum_squares(takes) for takes in cases)
    return Spread(deviation=math.sqrt(squares / freedom), freedom=freedom, source="visits")


def _sum_squares(takes: Sequence[Take]) -> float:
    mean = _mean([take.log_time for take in takes])
    return sum((take.log_time - mean) ** 2 for take in takes)


def _find_own_deviation(sides: Sides, spread: Spread) -> tuple[float, float]:
    """Of this case, with its degrees of freedom. Some cases differ more from run to run than
    others, and a few runs of one say little: its own repeats are averaged with all cases."""
    squares, freedom = sides.repeats
    if not freedom:
        return spread.deviation, spread.freedom
    weight = min(float(WEIGHT_OF_ALL), spread.freedom)
    squared = (weight * spread.deviation**2 + squares) / (weight + freedom)
    return math.sqrt(max(0.0, squared)), weight + freedom


def _from_repeats(cases: Sequence[Sides]) -> Spread | None:
    repeats = [sides.repeats for sides in cases]
    freedom = sum(own for _, own in repeats)
    if freedom < FEWEST_REPEATS:
        return None
    squares = sum(own for own, _ in repeats)
    deviation = math.sqrt(max(0.0, squares) / freedom)
    return Spread(deviation=deviation, freedom=freedom, source="repeats")


def _from_cases(cases: Sequence[Sides]) -> Spread | None:
    known = [sides for sides in cases if sides.within is not None]
    if len(known) < FEWEST_CASES:
        return None
    ratios = [sides.log_ratio for sides in known]
    middle, rough = _find_closest_half(ratios)
    kept = [ratio for ratio in ratios if abs(ratio - middle) <= OUTLYING * rough]
    far = [ratio for ratio in ratios if abs(ratio - middle) > FAR_OUT * rough]
    if any(ratio > middle for ratio in far) and any(ratio < middle for ratio in far):
        kept = ratios  # a machine that does so to the same code, not a change of it
    freedom = len(kept) - 1
    squares = sum((ratio - _mean(kept)) ** 2 for ratio in kept)
    deviation = math.sqrt(squares / freedom) * (CLIPPED if len(kept) < len(ratios) else 1.0)
    inside = median([sides.within or 0.0 for sides in known])
    # Both sides of a ratio have their share of it.
    squared = max(0.0, deviation**2 - inside**2) / 2
    return Spread(deviation=math.sqrt(squared), freedom=freedom, source="cases")


def _find_closest_half(values: Sequence[float]) -> tuple[float, float]:
    """The middle of the half of them that lies closest together, and the standard deviation that
    its width stands for, for a normal distribution (Rousseeuw and Leroy)."""
    ordered, half = sorted(values), (len(values) + 1) // 2
    starts = range(len(values) - half + 1)
    low, high = min(
        ((ordered[start], ordered[start + half - 1]) for start in starts),
        key=lambda ends: ends[1] - ends[0],
    )
    few = 1 + 5 / (len(values) - 1)  # the closest of few lies closer than a half does
    return (low + high) / 2, NORMAL_DEVIATION * few * (high - low) / 2


def _error_of_mean(takes: Sequence[Take]) -> float | None:
    errors = [take.error for take in takes if take.error is not None]
    return math.hypot(*errors) / len(takes) if len(errors) == len(takes) else None


def _join_freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Of a sum of squared errors, by Welch and Satterthwaite."""
    total = sum(error**2 for error, _ in parts)
    uncertain = sum(error**4 / freedom for error, freedom in parts if freedom > 0)
    return total**2 / uncertain if uncertain > 0 else math.inf


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@lru_cache(maxsize=1024)
def student_quantile(probability: float, freedom: float) -> float:
    """Of Student's distribution, for a probability over a half.

    >>> [round(student_quantile(0.995, freedom), 2) for freedom in (5, 10, 30, math.inf)]
    [4.03, 3.17, 2.75, 2.58]
    """
    normal = NormalDist().inv_cdf(probability)
    if math.isinf(freedom):
        return normal
    # Newton's method for the logarithms of both: the tail is close to a power of t.
    log_t, tail = math.log(normal), math.log1p(-probability)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    scale -= math.log(freedom * math.pi) / 2
    for _ in range(100):
        t = math.exp(log_t)
        log_tail = math.log(_student_tail(t, freedom))
        log_density = scale - (freedom + 1) / 2 * math.log1p(t * t / freedom)
        step = (log_tail - tail) / (t * math.exp(log_density - log_tail))
        log_t += step
        if abs(step) < 1e-14:
            break
    return math.exp(log_t)


def _student_tail(t: float, freedom: float) -> float:
    """P(T > t), half of the incomplete beta function (Abramowitz and Stegun, 26.7.1), by its
    continued fraction (26.5.8) where that converges fast."""
    x = freedom / (freedom + t * t)
    a, b = freedom / 2, 0.5
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front / a / _beta_fraction(a, b, x) / 2
    return (1 - front / b / _beta_fraction(b, a, 1 - x)) / 2


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)), from the end, which is far beyond what counts."""
    value = 1.0
    for m in range(50 + int(5 * math.sqrt(max(a, b))), 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        value = 1 + odd / (1 + even / value)
    return value
