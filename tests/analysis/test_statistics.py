from __future__ import annotations

import math
import random

import pytest

from flopwatch.analysis.statistics import (
    Estimate,
    effective_count,
    estimate_median,
    estimate_ratio,
    judge,
    median,
)


def test_median_of_even_and_odd_counts() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 3, 2]) == 2.5


def test_interval_ranks_are_those_of_the_binomial_distribution() -> None:
    # For 20 samples, P(at most 3 below the median) = 0.00129 and P(at most 4) = 0.0059, so that at
    # 99 % (0.005 a side) the interval runs from the 4th smallest to the 4th largest.
    values = [11, 3, 17, 8, 20, 1, 14, 6, 9, 19, 2, 13, 5, 16, 10, 4, 18, 7, 15, 12]
    assert effective_count(values) == 20
    estimate = estimate_median(values)
    assert (estimate.low, estimate.high) == (4, 17)


def test_many_samples_have_ends_between_two_of_them() -> None:
    values = [11 * n % 41 for n in range(1, 41)]  # 1 to 40, neighbours far apart
    assert effective_count(values) == 40
    # P(at most 13 below the median) and P(at most 14): the ranks 14 and 15 have these confidences.
    outer, inner = (1 - 2 * sum(math.comb(40, k) for k in range(n)) / 2**40 for n in (14, 15))
    for confidence, low in ((outer, 14), (inner, 15)):
        assert estimate_median(values, confidence).low == pytest.approx(low)
        assert estimate_median(values, confidence).high == pytest.approx(41 - low)
    estimate = estimate_median(values, 0.95)
    assert inner < 0.95 < outer
    assert estimate.low is not None
    assert 14 < estimate.low < 15
    assert estimate.high == pytest.approx(41 - estimate.low)


def test_too_few_samples_have_no_interval() -> None:
    estimate = estimate_median([5.0, 6.0, 7.0])
    assert estimate.value == 6
    assert estimate.low is None
    assert estimate.half_width is None


@pytest.mark.parametrize("count", [15, 60, 150, 400])
def test_interval_covers_the_true_median_as_often_as_it_says(count: int) -> None:
    generator = random.Random(1)
    covered = 0
    for _ in range(1000):
        estimate = estimate_median([generator.lognormvariate(0, 0.5) for _ in range(count)])
        if estimate.low is None or estimate.high is None:
            covered += 1  # too few effective samples: it claims nothing
        else:
            covered += estimate.low <= 1.0 <= estimate.high
    assert covered >= 982  # 99 % of 1000, less two and a half standard errors


def test_correlated_samples_count_for_less() -> None:
    generator = random.Random(2)
    level, walk = 0.0, []
    for _ in range(400):
        level = 0.9 * level + generator.gauss(0, 1)
        walk.append(100 + level)
    shuffled = walk[:]
    generator.shuffle(shuffled)
    assert effective_count(walk) < 60
    assert effective_count(shuffled) > 300
    wide, narrow = estimate_median(walk), estimate_median(shuffled)
    assert wide.half_width is not None
    assert narrow.half_width is not None
    assert wide.half_width > 2 * narrow.half_width


def test_equal_samples_are_not_taken_for_correlated() -> None:
    assert effective_count([5.0] * 50) == 50


def test_ratio_within_rounds_cancels_what_slows_a_whole_round() -> None:
    generator = random.Random(3)
    weather = [generator.choice([1.0, 3.0]) for _ in range(40)]
    baseline = [100 * w for w in weather]
    faster = [80 * w for w in weather]
    estimate = estimate_ratio(faster, baseline)
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((0.8, 0.8, 0.8))


def test_inverse_swaps_the_ends() -> None:
    speedup = Estimate(value=0.5, low=0.4, high=0.8, samples=9).inverse()
    assert (speedup.value, speedup.low, speedup.high) == (2.0, 1.25, 2.5)


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [
        (1.03, 1.05, 1.07, "faster"),
        (0.93, 0.95, 0.97, "slower"),
        (0.99, 1.00, 1.01, "same"),
        (1.001, 1.005, 1.01, "same"),  # surely faster, but not by anything that matters
        (1.005, 1.015, 1.04, "slightly faster"),
        (0.96, 0.985, 0.995, "slightly slower"),
        (1.005, 1.01, 1.02, "same"),
        (0.99, 1.02, 1.05, "unclear"),
        (0.97, 1.03, 1.10, "unclear"),
        (0.95, 1.00, 1.05, "unclear"),
        (None, 1.50, None, "unclear"),
    ],
)
def test_verdicts(low: float | None, value: float, high: float | None, verdict: str) -> None:
    assert judge(Estimate(value=value, low=low, high=high, samples=20)) == verdict
