"""How often warnings are raised over noise that deserves none, and over what deserves them."""

from __future__ import annotations

import numpy as np
import pytest

from flopwatch.analysis.measurement_warnings import CHANCE
from flopwatch.analysis.warning_findings import LEAST_CHANGE, find_modes, find_trend
from flopwatch.analysis.warnings import find_warnings
from tests.conftest import make_record
from tests.noise import CORRELATIONS, make_noise

COUNTS = (8, 12, 20, 50, 100)
SERIES = 200


def is_trend(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    trend = find_trend(list(values))
    return trend is not None and trend.chance <= CHANCE and abs(trend.change) >= LEAST_CHANGE


def is_two_modes(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    modes = find_modes(list(values))
    return modes is not None and modes.distance >= LEAST_CHANGE


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("count", COUNTS)
def test_noise_has_no_trend(count: int, correlation: float) -> None:
    rng = np.random.default_rng(count)
    found = sum(is_trend(make_noise(rng, count, correlation=correlation)) for _ in range(SERIES))
    # Strongly correlated noise of a dozen samples is hard to tell from a trend.
    assert found <= (0.01 if correlation < 0.5 else 0.04) * SERIES


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("outlier_share", [0.05, 0.15])
@pytest.mark.parametrize("count", COUNTS)
def test_noise_has_one_mode(count: int, outlier_share: float, correlation: float) -> None:
    rng = np.random.default_rng(count)
    found = sum(
        is_two_modes(make_noise(rng, count, correlation=correlation, outlier_share=outlier_share))
        for _ in range(SERIES)
    )
    assert found <= 0.01 * SERIES


@pytest.mark.parametrize("count", [20, 50, 100])
def test_skewed_and_even_noise_has_one_mode(count: int) -> None:
    rng = np.random.default_rng(count)
    skewed = sum(is_two_modes(1 + rng.exponential(0.3, count)) for _ in range(SERIES))
    even = sum(is_two_modes(1 + rng.random(count)) for _ in range(SERIES))
    assert max(skewed, even) <= 0.01 * SERIES


@pytest.mark.parametrize(
    ("count", "change", "least"), [(20, 0.4, 0.6), (50, 0.2, 0.7), (100, 0.2, 0.95)]
)
def test_a_slow_rise_is_found(count: int, change: float, least: float) -> None:
    rng = np.random.default_rng(count)
    ramp = np.linspace(1, 1 + change, count)
    found = sum(is_trend(make_noise(rng, count, sigma=0.05) * ramp) for _ in range(100))
    assert found >= 100 * least


@pytest.mark.parametrize(("count", "change", "least"), [(50, 0.2, 0.8), (100, 0.1, 0.8)])
def test_a_step_is_found(count: int, change: float, least: float) -> None:
    rng = np.random.default_rng(count)
    step = np.where(np.arange(count) < count // 2, 1.0, 1 + change)
    found = sum(is_trend(make_noise(rng, count, sigma=0.05) * step) for _ in range(100))
    assert found >= 100 * least


@pytest.mark.parametrize(
    ("count", "distance", "least"), [(30, 0.4, 0.2), (50, 0.2, 0.5), (100, 0.2, 0.9)]
)
@pytest.mark.parametrize("high_share", [0.5, 0.35])
def test_two_modes_are_found(count: int, distance: float, least: float, high_share: float) -> None:
    rng = np.random.default_rng(count)
    found = 0
    for _ in range(100):
        level = np.where(rng.random(count) < high_share, 1 + distance, 1.0)
        found += is_two_modes(make_noise(rng, count, correlation=0, sigma=0.03) * level)
    assert found >= 100 * least


def test_many_cases_of_noise_raise_no_statistical_warning() -> None:
    """Each alone may be unlikely: they are judged together."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(400):
        count = (12, 20, 50, 100)[number % 4]
        for variant in ("a", "b"):
            samples = 1e6 * make_noise(rng, count)
            records.append(
                make_record(
                    case_id=f"{variant}{number}",
                    group_id=str(number),
                    variant=variant,
                    params={"size": number},
                    samples_ns={"call": samples.tolist()},
                    rounds=list(range(count)),
                    calls_per_sample=[1] * count,
                )
            )
    warnings = {warning.kind: warning for warning in find_warnings(records)}
    statistical = ("drift", "speedup-drift", "warm-up-never-ended", "two-modes")
    raised = [len(warnings[kind].cases) for kind in statistical if kind in warnings]
    assert sum(raised) <= 2
