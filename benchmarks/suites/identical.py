"""Identical variants, and one that does 5 % more work: what does flopwatch make of them?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import torch

import flopwatch

UNITS = {"same": 20, "again": 20, "more": 21}
"""How often each variant does the unit of work: 21 against 20 is 5 % more."""

suite = flopwatch.Suite(
    "trust",
    axes={
        "work": ["matmul", "gelu", "softmax", "short"],
        "repeat": list(range(50)),
        "compared": ["again", "more"],
    },
    variants=list(UNITS),
    baseline="same",
    where=lambda case: case.variant in ("same", case.compared),
)


def make_unit(work: str) -> Callable[[], torch.Tensor]:
    """One unit of work: from a few microseconds to about a millisecond."""
    if work == "matmul":
        a, b = torch.randn(128, 256), torch.randn(256, 256)
        return lambda: a @ b
    if work == "short":
        a = torch.randn(64)
        return lambda: a + a
    x = torch.randn(256, 1024)
    if work == "gelu":
        return lambda: torch.nn.functional.gelu(x)
    return lambda: x.softmax(-1)


@suite.build
def build(case: flopwatch.Case) -> Callable[[], torch.Tensor]:
    unit, units = make_unit(case.work), UNITS[case.variant]

    def work() -> torch.Tensor:
        for _ in repeat(None, units):
            result = unit()
        return result

    return work
