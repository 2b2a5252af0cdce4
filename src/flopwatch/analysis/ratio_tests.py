"""What samples say about a ratio of times, at any confidence, and how sure many such ratios are
together.

Evidence is of two kinds. *Paired*: both sides were measured in the same rounds; the ratio is the
median of the ratios within rounds, and its interval follows from their order, whatever their
distribution (see `statistics`). *Separate*: the sides are different runs; the ratio is that of
their medians, and its interval is by bootstrap. Blocks of neighbouring samples are drawn, not
single ones, so that slow changes of the machine widen the interval. What differs from run to run
cannot be seen inside one: see `run_spread`.

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

from flopwatch.analysis.statistics import Estimate, effective_count, estimate_median, fewest_samples

RESAMPLES = 200
MOST_BLOCKS = 12
"""Fewer and longer ones see slower changes; more of them make the interval itself less certain."""
MOST_SAMPLES = 2000
"""Of a run, for the bootstrap: more only cost time. Neighbours are averaged."""
MOST_ASKED = {"sample": 100_000, "run": 1000}
"""More is not worth suggesting."""


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
        anybody would take."""
        count, ratio = len(self.ratios), self.at(confidence)
        if count < 2:  # one value of each side: nobody means to take more
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
        """As above. More samples do not help against what differs from run to run: only more runs
        do."""
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
    dependent = math.ceil(count / effective_count(values.tolist()))
    length = max(1, dependent, count // MOST_BLOCKS)
    blocks = math.ceil(count / length)
    starts = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, blocks))
    places = (starts[:, :, None] + np.arange(length)) % count
    medians = np.median(values[places.reshape(RESAMPLES, -1)[:, :count]], axis=1)
    return float(medians.std(ddof=1))


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
