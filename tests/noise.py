"""Simulated timing noise: skewed, with outliers, and with neighbours that move together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CORRELATIONS = (0.0, 0.3, 0.6)
"""Of neighbours; real samples of a busy machine are at 0.2 to 0.6."""


def make_noise(
    rng: np.random.Generator,
    count: int,
    *,
    correlation: float = 0.3,
    sigma: float = 0.1,
    outlier_share: float = 0.05,
) -> NDArray[np.float64]:
    """Around 1."""
    logs = np.empty(count)
    logs[0] = rng.normal()
    fresh = np.sqrt(1 - correlation**2)
    for place in range(1, count):
        logs[place] = correlation * logs[place - 1] + fresh * rng.normal()
    slow = np.where(rng.random(count) < outlier_share, 1 + rng.exponential(1.0, count), 1.0)
    return np.exp(sigma * logs) * slow
