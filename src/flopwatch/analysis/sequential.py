"""When a comparison is settled: a test that may be looked at after every round.

Looking at an ordinary 99 % interval again and again, and stopping once it excludes 1, would call
identical variants different far more often than once in a hundred times. The interval here holds
the true median at *all* looks together with the probability that it states.

It is a bet. Whatever the true median is, a ratio lies below or above it with equal chances. Whoever
bets on one side, a share of the capital on each round, cannot expect to gain, and ever reaches 100
times the capital with a probability of 1 % at most (Ville's inequality). The bets of all shares are
made side by side, weighted by a beta distribution, which gives the capital in closed form:

    B(below + PRIOR, above + PRIOR) / B(PRIOR, PRIOR) * 2 ** (below + above)

A candidate for the median against which that bet has won 100 times is excluded; what is left is an
interval between two of the ordered ratios (Howard and Ramdas 2022 have the theory).

What is assumed: given the rounds before, a ratio is as likely below the median as above. The random
order within rounds makes that so for identical variants, however the machine's speed drifts and
however its noise is distributed and correlated: each of the two is as likely to have met the slow
moment. Only what clings to a variant for many rounds escapes, such as the place of its tensors in
memory; the correlation of neighbouring ratios shows it, and they count for less then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from flopwatch.analysis.statistics import (
    CONFIDENCE,
    THRESHOLD,
    Estimate,
    estimate_median,
    judge,
)

PRIOR = 4.0
"""Of the beta distribution: larger ones suit small differences and need more rounds for any. With
this one, 15 rounds can settle a large difference, and of intervals over 30 to 3,000 rounds none is
more than a tenth wider than with the prior that would be the best for it."""


def estimate_anytime(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The median, and an interval that holds it at all looks with this confidence.

    >>> estimate_anytime([11 * n % 40 for n in range(40)])
    Estimate(value=19.5, low=8, high=31, samples=40)
    """
    return estimate_median(values, confidence, _find_rank)


def is_settled(ratios: Sequence[float], threshold: float = THRESHOLD) -> bool:
    """Whether more rounds would hardly change the verdict on these ratios of times."""
    return is_clear(estimate_anytime(ratios).inverse(), threshold)


def is_clear(speedup: Estimate, threshold: float) -> bool:
    """Whether a verdict can rest on this interval.

    Of a difference near the threshold, which side of it is right may take forever: it is clear that
    there is one, once it is known to half the threshold.
    """
    verdict = judge(speedup, threshold)
    if verdict.startswith("slightly"):
        return speedup.half_width is not None and speedup.half_width <= threshold / 2
    return verdict != "unclear"


@lru_cache(maxsize=4096)
def _find_rank(count: int, confidence: float) -> int | None:
    """The most values that may lie on one side of a candidate for it to be excluded."""
    needed = -math.log(1 - confidence) - count * math.log(2) + _log_beta(PRIOR, PRIOR)
    rank = None
    low, high = 0, count // 2
    while low <= high:  # the capital falls as both sides become more equal
        middle = (low + high) // 2
        if _log_beta(middle + PRIOR, count - middle + PRIOR) >= needed:
            rank, low = middle, middle + 1
        else:
            high = middle - 1
    return rank


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
