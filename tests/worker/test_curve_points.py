"""What points of curves may be."""

from __future__ import annotations

from typing import Any

import pytest

from flopwatch.errors import SuiteError
from flopwatch.worker.curve_points import Diverged, take_points


def test_points_become_plain_numbers() -> None:
    import torch

    points = [{"loss": torch.tensor(2.5), "step": True}, {"step": 3, "loss": "1e-3"}]
    assert list(take_points(lambda: points)) == [
        {"loss": 2.5, "step": 1.0},
        {"loss": 1e-3, "step": 3.0},
    ]
    assert list(take_points(lambda: [])) == []


@pytest.mark.parametrize(
    ("second", "error", "complaint"),
    [
        ({"loss": 1.0, "step": 2}, SuiteError, "first point has loss, and point 2 loss, step"),
        ({}, SuiteError, "first point has loss, and point 2 nothing; yield the same names"),
        ({"loss": None}, SuiteError, "yield a NoneType as 'loss'; yield numbers"),
        (0.5, SuiteError, "the curves yield float; yield mappings of names to numbers"),
        ({"loss": float("inf")}, Diverged, "its curve diverged: loss is inf at point 2"),
    ],
)
def test_what_curves_may_not_yield(second: Any, error: type[Exception], complaint: str) -> None:
    points = take_points(lambda: [{"loss": 2.0}, second])
    assert next(points) == {"loss": 2.0}
    with pytest.raises(error, match=complaint):
        next(points)
