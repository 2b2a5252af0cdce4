"""How often intervals hold the truth, and verdicts are right, where neighbours move together.

`benchmarks/coverage.py` does the same on recorded noise.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flopwatch.analysis.statistics import estimate_median, judge
from flopwatch.settings import Settings
from tests.noise import make_noise

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from verdict_tools.recorded_noise import Noise, draw_window
from verdict_tools.replay import compare_again, holds

ROUNDS = 1500


def make_clinging(
    rng: np.random.Generator, count: int, share: float, length: int
) -> NDArray[np.float64]:
    """Noise of which a share stays the same for so many rounds: a place in memory, say."""
    kept = np.repeat(rng.normal(size=count // length + 1), length)[:count]
    return np.sqrt(share) * kept + np.sqrt(1 - share) * rng.normal(size=count)


@pytest.mark.parametrize(
    ("count", "share", "length"),
    [
        (27, 0.0, 1),  # independent: ends at ordered samples would make it 98 %
        (60, 0.0, 1),
        (100, 0.3, 5),
        (400, 0.1, 20),  # hardly a correlation of neighbours, but one of 20
    ],
)
def test_95_percent_are_95_percent(count: int, share: float, length: int) -> None:
    rng = np.random.default_rng(count)
    held = [
        holds(estimate_median(make_clinging(rng, count, share, length).tolist(), 0.95), 0.0)
        for _ in range(2000)
    ]
    assert 0.93 <= np.mean([one for one in held if one is not None]) <= 0.97


def make_lasting(sigma: float) -> Noise:
    """Of identical variants: slow moments last several rounds, and some hit one sample only."""
    moments = make_noise(np.random.default_rng(4), 2 * ROUNDS, correlation=0.8, sigma=sigma)
    first_ns, second_ns = 1e6 * moments.reshape(-1, 2).T
    return Noise(
        operation="simulated",
        condition="quiet",
        placement="shared",
        first_ns=first_ns.tolist(),
        second_ns=second_ns.tolist(),
        is_a_first=[True] * ROUNDS,
        rounds_ns=(2 * (first_ns + second_ns)).tolist(),
        renewed_rounds=[],
    )


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("factor", "sigma", "right", "most_unclear"),
    [
        # So noisy that there are dozens of looks before it is settled.
        (1.0, 0.2, {"same"}, 0.3),
        (1.03, 0.05, {"slower", "slightly slower"}, 0.05),
        (1.2, 0.05, {"slower"}, 0.0),
    ],
)
def test_comparisons_on_noise_that_lasts(
    factor: float, sigma: float, right: set[str], most_unclear: float
) -> None:
    noise, rng, count = make_lasting(sigma), np.random.default_rng(1), 120
    held: list[bool | None] = []
    verdicts: Counter[str] = Counter()
    for number in range(count):
        settings = Settings(seed=number, budget_s=noise.seconds / 2)
        compared = compare_again(draw_window(noise, rng), factor, settings)
        held.append(holds(estimate_median(compared.ratios, 0.95), factor))
        verdicts[judge(estimate_median(compared.ratios).inverse())] += 1
    wrong = count - verdicts["unclear"] - sum(verdicts[verdict] for verdict in right)
    assert wrong <= 0.01 * count
    assert verdicts["unclear"] <= most_unclear * count
    assert np.mean([one for one in held if one is not None]) >= 0.9
