"""Whether samples lie around two levels instead of one.

Of all ways to cut the ordered samples in two, neither part smaller than a quarter, the one with the
widest gap is taken: the distance between the lower part's 90 % quantile and the upper part's 10 %
quantile, over the distance of their medians. Quantiles, so that outliers neither fill a gap nor
make one; logarithms, so that skewed noise is no second level. Samples without any structure, spread
evenly, give gaps of 0.2 and a chance part that falls with their number: what exceeds
0.2 + 3 / sqrt(n) is a level of its own, but for less than one such series in a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 16
"""With fewer, no gap is too wide for chance."""
LEAST_SHARE = 0.25
"""A smaller part is outliers, which a median ignores."""
EVEN_GAP = 0.2
CHANCE = 3.0
FOR_EACH_TENFOLD = 0.3
"""Added to CHANCE for ten times as many series, each of which may raise an alarm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Modes:
    low: float
    high: float
    """Medians of the two parts."""
    high_share: float
    gap: float

    @property
    def distance(self) -> float:
        """How much more the higher one is, relatively."""
        return self.high / self.low - 1


def find_modes(values: Sequence[float], num_series: int = 1) -> Modes | None:
    """None where one level explains the values, or they are too few; `num_series` is how many
    series are looked at.

    >>> find_modes([100 + (7 * n) % 11 for n in range(40)]) is None
    True
    >>> modes = find_modes([(100, 100, 130)[n % 3] + (7 * n) % 5 for n in range(40)])
    >>> modes.low, modes.high, round(modes.high_share, 2)
    (102.0, 132.0, 0.33)
    """
    import numpy as np

    count = len(values)
    if count < FEWEST:
        return None
    ordered = np.sort(np.asarray(values, dtype=float))
    logs = np.log(ordered)
    least = math.ceil(LEAST_SHARE * count)
    lower = np.arange(least, count - least + 1)  # how many are in the lower part
    upper = count - lower
    distance = logs[lower + upper // 2] - logs[(lower - 1) // 2]
    top = np.rint(0.9 * (lower - 1)).astype(int)
    bottom = lower + np.rint(0.1 * (upper - 1)).astype(int)
    gaps = (logs[bottom] - logs[top]) / np.where(distance > 0, distance, np.inf)
    best = int(np.argmax(gaps))
    chance = CHANCE + FOR_EACH_TENFOLD * math.log10(max(1, num_series))
    if gaps[best] <= EVEN_GAP + chance / math.sqrt(count):
        return None
    # Quantiles leave the place of the cut open; the widest step between neighbours decides.
    first, last = int(top[best]), int(bottom[best])
    cut = first + 1 + int(np.argmax(np.diff(logs[first : last + 1])))
    return Modes(
        low=float(np.median(ordered[:cut])),
        high=float(np.median(ordered[cut:])),
        high_share=(count - cut) / count,
        gap=float(gaps[best]),
    )
