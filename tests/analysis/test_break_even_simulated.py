"""How often the interval of a break_even holds the true point."""

from __future__ import annotations

import numpy as np
import pytest

from flopwatch.analysis.break_even import find_break_evens
from flopwatch.analysis.summary import summarize
from flopwatch.records.record import Record
from tests.conftest import make_record
from tests.noise import make_noise

BATCHES = (16, 64, 256, 1024)
TRUE_POINT = 120.0
POWER = 0.15
"""Speedups of (batch / TRUE_POINT) ** POWER: 0.74, 0.91, 1.12, 1.38."""


def make_series(rng: np.random.Generator, rounds: int, correlation: float) -> list[Record]:
    """Both variants share what slows a round, and have noise of their own."""
    records = []
    for batch in BATCHES:
        shared = make_noise(rng, rounds, correlation=correlation, sigma=0.1)
        speedup = (batch / TRUE_POINT) ** POWER
        for variant, factor in (("dense", 1.0), ("fast", 1 / speedup)):
            own = make_noise(rng, rounds, correlation=correlation, sigma=0.03)
            records.append(
                make_record(
                    case_id=f"{variant}{batch}",
                    group_id=str(batch),
                    variant=variant,
                    baseline="dense",
                    params={"batch_size": batch},
                    samples_ns={"call": (1e6 * factor * shared * own).tolist()},
                    rounds=list(range(rounds)),
                    calls_per_sample=[1] * rounds,
                )
            )
    return records


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("rounds", [12, 40])
def test_the_interval_holds_the_true_point(rounds: int, correlation: float) -> None:
    rng = np.random.default_rng(rounds)
    held, widths, points = 0, [], []
    for _ in range(150):
        rows = summarize(make_series(rng, rounds, correlation))
        for break_even in find_break_evens(rows, "batch_size"):
            for crossing in break_even.crossings if not break_even.is_bare else []:
                assert crossing.low is not None
                assert crossing.high is not None
                assert crossing.low <= crossing.point <= crossing.high
                held += crossing.low <= TRUE_POINT <= crossing.high
                widths.append(crossing.high / crossing.low)
                points.append(crossing.point)
    assert len(points) >= 100  # in some series no verdict is clear on one of the sides
    assert held >= 0.98 * len(points)
    # And it is of use: narrower than what was measured around it, right in the middle.
    assert np.median(widths) < (3.0 if rounds == 12 else 2.0)
    assert np.median(points) == pytest.approx(TRUE_POINT, rel=0.05)
