"""The statistics that decide when to stop and what to say.

Timings are skewed, have outliers and sometimes two modes, so that means and normal intervals
mislead. Everything here rests on the median and its distribution-free interval: of n independent
samples in order, the k-th smallest and the k-th largest enclose the true median with a probability
that the binomial distribution gives, whatever the samples' distribution. Only few probabilities
are possible that way: with 27 samples an interval at 95 % would be one at 98.1 %. From 25 samples
on, the ends therefore lie between two ordered samples, as Hettmansperger and Sheather (1986)
interpolate them, which comes within half a percent of the confidence for smooth distributions.

Samples of a busy machine are not independent: a slow moment makes several neighbours slow. n is
therefore replaced by an effective number (`effective_count`); without that, intervals are too
narrow just where they matter.

A comparison is the median of the ratios *within* rounds: what slows a whole round hits both
variants alike and cancels. The ratio of the two medians keeps that noise.

The interval is at 99 %, so that of a hundred identical variants hardly one is called different.
When to stop is decided by a wider one, which allows for looking at it again and again
(`sequential`). `benchmarks/coverage.py` measures how often intervals hold the truth, and
`benchmarks/verdicts.py` how often verdicts are right.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add, mul, sub
from statistics import NormalDist
from typing import Any, Literal

from flopwatch.records.record import Record

CONFIDENCE = 0.99
THRESHOLD = 0.02
"""A ratio closer to 1 than this is not called "faster" or "slower". Where a variant's tensors
happen to lie in memory changes its time for as long as its process lives: identical variants really
differ by a percent or two then, however many rounds you take. A difference of 3 % is beyond it."""

ROUNDING = 1.02
"""Displayed times are rounded, and nobody divides them more closely than this."""

Verdict = Literal["faster", "slower", "slightly faster", "slightly slower", "same", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A value with its interval; low and high are None where samples are too few for one."""

    value: float
    low: float | None
    high: float | None
    samples: int

    @property
    def half_width(self) -> float | None:
        """Reach to the farther side, relative to the value. None: unknown."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return max(self.high - self.value, self.value - self.low) / abs(self.value)

    def inverse(self) -> Estimate:
        """The estimate of 1 / value, as from a ratio of times to a speedup."""
        low = None if self.high is None else 1 / self.high
        high = None if self.low is None else 1 / self.low
        return Estimate(value=1 / self.value, low=low, high=high, samples=self.samples)

    def scale(self, factor: float) -> Estimate:
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Estimate(value=self.value * factor, low=low, high=high, samples=self.samples)


def as_interval(estimate: Estimate | None) -> dict[str, float | None] | None:
    """For JSON."""
    if estimate is None:
        return None
    return {"median": estimate.value, "low": estimate.low, "high": estimate.high}


def with_intervals(content: Any) -> dict[str, Any]:
    """A dataclass for JSON, its estimates as intervals."""
    values = {field.name: getattr(content, field.name) for field in fields(content)}
    return {k: as_interval(v) if isinstance(v, Estimate) else v for k, v in values.items()}


def is_contradicted(speedup: Estimate, old_ns: float, new_ns: float) -> bool:
    """Whether the ratio of two median times lies outside the interval of the speedup, which is from
    ratios within rounds: the times drifted, and you get another answer by dividing them."""
    low = speedup.value if speedup.low is None else speedup.low
    high = speedup.value if speedup.high is None else speedup.high
    return not low / ROUNDING <= old_ns / new_ns <= high * ROUNDING


def median(values: Sequence[float]) -> float:
    return _median_of_sorted(sorted(values))


def estimate_median(
    values: Sequence[float],
    confidence: float = CONFIDENCE,
    find_rank: Callable[[int, float], float | None] | None = None,
) -> Estimate:
    """The median and its distribution-free interval, between the values at a rank from either end:
    the one for a number of samples that was fixed beforehand, unless `find_rank` finds another.

    >>> estimate_median([5, 1, 9, 2, 7, 6, 8, 3, 10, 4], confidence=0.95)
    Estimate(value=5.5, low=2, high=9, samples=10)
    """
    ordered = sorted(values)
    count = len(ordered)
    effective = round(effective_count(values))
    rank = (find_rank or _interval_rank)(effective, confidence)
    if rank is None:
        return Estimate(value=_median_of_sorted(ordered), low=None, high=None, samples=count)
    # The same quantile among all samples; a whole rank is a bound, which is not passed.
    position = rank * count // effective if isinstance(rank, int) else rank * count / effective
    return Estimate(
        value=_median_of_sorted(ordered),
        low=_interpolate(ordered, position),
        high=_interpolate(ordered, count - 1 - position),
        samples=count,
    )


def _interpolate(ordered: Sequence[float], position: float) -> float:
    place = math.floor(position)
    weight = position - place
    if weight == 0:
        return ordered[place]
    return (1 - weight) * ordered[place] + weight * ordered[place + 1]


def estimate_ratio(times: Sequence[float], baseline_times: Sequence[float]) -> Estimate:
    """Median of the ratios of paired times; below 1 where `times` are the shorter ones."""
    return estimate_median([a / b for a, b in zip(times, baseline_times, strict=True)])


def judge(speedup: Estimate, threshold: float = THRESHOLD) -> Verdict:
    """What a speedup over the baseline allows you to say.

    "faster" and "slower" need both: the whole interval on one side of 1, and a size that matters.
    "same" is a finding too: the whole interval lies within the threshold. "slightly" is between
    them: a difference for certain, below the threshold as far as is known, perhaps above it. With
    a threshold of 3 %, the times of one side are at least 1.03 times those of the other.
    """
    if speedup.low is None or speedup.high is None:
        return "unclear"
    least, most = 1 / (1 + threshold), 1 + threshold
    if least <= speedup.low and speedup.high <= most and least < speedup.value < most:
        return "same"
    if speedup.low > 1:
        return "faster" if speedup.value >= most else "slightly faster"
    if speedup.high < 1:
        return "slower" if speedup.value <= least else "slightly slower"
    return "unclear"


FEW = 25
"""With fewer samples than this, whether neighbours move together is hard to see: sums of them vary
by chance, and many would have no interval. So only direct neighbours are looked at, and intervals
end at the outer of two ordered samples, which makes up for what is not seen."""


def effective_count(values: Sequence[float]) -> float:
    """How many independent samples these ordered ones are worth.

    Two signs that neighbours' ranks move together, of which the stronger one counts. Their
    correlation r alone makes it n (1 - r) / (1 + r), where each sample resembles the one before:
    a busy machine. What resembles several neighbours a little, as all samples between two renewals
    do, shows in the sums of sqrt(n) neighbours: they vary more than sums of independent ones.
    """
    count = len(values)
    if count < 8:
        return count
    deviations = _rank_deviations(values)
    variance: float = sum(map(mul, deviations, deviations))
    if variance == 0:
        return count
    inflation = 1.0
    correlation = sum(map(mul, deviations, deviations[1:])) / variance
    # What chance alone gives (one standard error) does not count against the samples.
    if correlation > 1 / math.sqrt(count):
        inflation = (1 + correlation) / (1 - correlation)
    if count >= FEW:
        inflation = max(inflation, _inflate_sums(deviations, math.isqrt(count)) / variance)
    return max(1.0, count / inflation)


def _inflate_sums(deviations: Sequence[float], width: int) -> float:
    """The squares of all sums of so many neighbours, over the number of sums that each is in. Those
    of independent ones would add up to the squares of the single deviations."""
    # Deviations add up to 0, so that running totals are 0 before the first and after the last.
    totals = [*repeat(0.0, width), *accumulate(deviations), *repeat(0.0, width - 1)]
    sums = list(map(sub, totals[width:], totals))
    squares: float = sum(map(mul, sums, sums))
    return squares / width


def _rank_deviations(values: Sequence[float]) -> list[float]:
    """Of the ranks from their mean."""
    ordered = sorted(values)
    places = {value: place for place, value in enumerate(ordered)}
    if len(places) == len(ordered):
        ranks = [places[value] + 0.5 for value in values]
    else:
        # Mid-ranks, so that many equal values (a coarse clock) do not fake a correlation.
        ranks = [(bisect_left(ordered, v) + bisect_right(ordered, v)) / 2 for v in values]
    mean = len(ranks) / 2
    return [rank - mean for rank in ranks]


def fewest_samples(confidence: float = CONFIDENCE) -> int:
    """With which there is an interval of the median at all.

    >>> fewest_samples(0.99)
    8
    """
    return next(n for n in range(2, 1000) if _interval_rank(n, confidence) is not None)


@lru_cache(maxsize=4096)
def _interval_rank(count: int, confidence: float) -> float | None:
    """The k, from 0 and between whole numbers, such that the interval from the k-th smallest to the
    k-th largest has the confidence; None where not even all samples have it."""
    tail = (1 - confidence) / 2
    if count > 100:
        # Normal approximation with continuity; exact to a tenth of a rank from here on.
        z = NormalDist().inv_cdf(1 - tail)
        return (count - 1) / 2 - z * math.sqrt(count) / 2
    below, rank = 0.0, 0
    while below + _binomial(count, rank) <= tail:
        below, rank = below + _binomial(count, rank), rank + 1
    if rank == 0:
        return None
    if count < FEW:
        return rank - 1
    # The rank before still has the confidence, this one does not. Hettmansperger and Sheather's
    # weight is not linear: between the two, samples are denser towards the median.
    share = (tail - below) / _binomial(count, rank)
    return rank - 1 + (count - rank) * share / (rank + (count - 2 * rank) * share)


def _binomial(count: int, below: int) -> float:
    """The probability that exactly so many of the samples lie below the median."""
    return math.comb(count, below) / float(2**count)


def _median_of_sorted(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def is_measured(record: Record) -> bool:
    """Whether it has a time that tables show."""
    return record.status == "ok" and len(record.rounds) > record.warmup_samples


def is_timed(record: Record) -> bool:
    """Whether it serves as a baseline: also if something after its timing failed, a study say."""
    return len(record.rounds) > record.warmup_samples and (
        record.status == "ok" or record.stop_reason is not None
    )


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


def ratios_by_round(record: Record, baseline: Record) -> list[float]:
    """Of their times, in the rounds that both took part in."""
    mine, theirs = totals_by_round(record), totals_by_round(baseline)
    return [mine[round_] / theirs[round_] for round_ in sorted(mine.keys() & theirs.keys())]


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


STEADY_TOLERANCE = 0.03
"""Two windows whose medians differ by less than this are alike, however little they scatter."""

STEADY_WINDOWS = ((20e6, 5), (500e6, 3), (float("inf"), 2))
"""(sample shorter than this many ns, samples in a window): a step that takes seconds cannot be
repeated ten times before it counts."""


def is_steady(samples_ns: Sequence[float]) -> bool:
    """Whether warm-up is over: the last two windows of these samples agree.

    The first calls of a variant pay for allocation, compilation, lazy initialisation, cold caches
    and a low clock frequency. How many calls that takes is not known beforehand. Both directions
    count: a time that still falls has not warmed up, and one that still rises (a filling cache, a
    heating chip) is not what the next minutes will show either.

    >>> is_steady([900, 500, 104, 101, 100, 100, 102, 101, 100, 100])
    False
    >>> is_steady([900, 500, 104, 101, 100, 100, 102, 101, 100, 100, 101, 100])
    True
    """
    if not samples_ns:
        return False
    width = next(window for limit, window in STEADY_WINDOWS if samples_ns[-1] < limit)
    if len(samples_ns) < 2 * width:
        return False
    earlier, later = samples_ns[-2 * width : -width], samples_ns[-width:]
    difference = abs(median(later) - median(earlier))
    # Only the later window's scatter excuses a difference: a steep fall scatters by itself.
    return difference <= max(STEADY_TOLERANCE * median(later), 2 * _scatter(later))


def _scatter(samples_ns: Sequence[float]) -> float:
    """Median absolute deviation."""
    centre = median(samples_ns)
    return median([abs(sample - centre) for sample in samples_ns])


def is_stalled(widths: dict[int, float | None]) -> bool:
    """Whether four times the rounds have narrowed the interval by less than a fifth.

    Independent samples would have halved it. `widths` holds the width by number of rounds.
    """
    latest = max(widths)
    earlier = [count for count in widths if count <= latest / 4]
    if latest < 100 or not earlier:
        return False
    before, now = widths[max(earlier)], widths[latest]
    return before is not None and now is not None and now > 0.8 * before
