"""The sequential test on simulated noise: drifting, correlated, with outliers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from flopwatch.analysis.sequential import estimate_anytime, is_settled
from flopwatch.analysis.statistics import estimate_median, judge
from tests.noise import make_noise

LOOKS = [round(12 * 1.1**look) for look in range(50)]


def make_ratios(rng: np.random.Generator, correlation: float) -> NDArray[np.float64]:
    """Of identical variants in random order: whoever is first meets the noise of that moment."""
    noise = make_noise(rng, 2 * LOOKS[-1], correlation=correlation).reshape(-1, 2)
    is_swapped = rng.random(len(noise)) < 0.5
    ratios = noise[:, 1] / noise[:, 0]
    return np.where(is_swapped, 1 / ratios, ratios)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_the_interval_holds_at_all_looks_together(correlation: float) -> None:
    rng = np.random.default_rng(7)
    misses_anytime = misses_fixed = 0
    for _ in range(200):
        ratios = make_ratios(rng, correlation).tolist()
        looks = [
            (estimate_anytime(ratios[:n], 0.9), estimate_median(ratios[:n], 0.9)) for n in LOOKS
        ]
        missed = [
            [e.low is not None and e.high is not None and not e.low <= 1 <= e.high for e in look]
            for look in looks
        ]
        misses_anytime += any(anytime for anytime, _ in missed)
        misses_fixed += any(fixed for _, fixed in missed)
    assert misses_anytime <= 0.1 * 200
    assert misses_fixed > 0.25 * 200  # what looking often does to an ordinary interval


def test_it_is_wider_than_the_interval_of_a_single_look() -> None:
    """So that what was settled is also what tables say."""
    rng = np.random.default_rng(1)
    for count in (15, 40, 200, 3000):
        values = rng.normal(size=count).tolist()
        wide, narrow = estimate_anytime(values), estimate_median(values)
        assert wide.low is not None
        assert wide.high is not None
        assert narrow.low is not None
        assert narrow.high is not None
        assert wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high


def test_few_rounds_settle_nothing() -> None:
    assert estimate_anytime([2.0] * 14).low is None
    assert not is_settled([2.0] * 14)
    assert is_settled([2.0] * 15)


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, "same"), (1.03, "slower"), (0.95, "faster"), (1.2, "slower")]
)
def test_verdicts_settle_and_are_right(factor: float, expected: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        values = (factor * np.exp(0.02 * rng.standard_cauchy(2000).clip(-50, 50))).tolist()
        count = next(n for n in range(12, 2000, 12) if is_settled(values[:n]))
        assert judge(estimate_median(values[:count]).inverse()) == expected


def test_a_difference_at_the_threshold_ends_too() -> None:
    rng = np.random.default_rng(5)
    values = (1.019 * np.exp(0.02 * rng.normal(size=3000))).tolist()
    count = next(n for n in range(12, 3000, 12) if is_settled(values[:n]))
    # It is slower, and by less than the threshold: one or the other is said.
    verdict = judge(estimate_median(values[:count]).inverse())
    assert verdict in ("slower", "slightly slower", "same")
