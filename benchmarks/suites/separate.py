"""Work that separate runs repeat, beside a yardstick: with SEPARATE_WORK=more, 5 % more of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import repeat

import torch

import flopwatch

UNITS = {"plain": 20, "more": 21}[os.environ.get("SEPARATE_WORK", "plain")]

suite = flopwatch.Suite(
    "separate",
    axes={"work": ["matmul", "gelu", "softmax", "norm", "add"], "rows": [96, 128, 192, 256, 384]},
    variants=["yardstick", "plain"],
    baseline="yardstick",
)


def make_unit(work: str, rows: int) -> Callable[[], torch.Tensor]:
    x, weight = torch.randn(rows, 512), torch.randn(512, 256)
    units: dict[str, Callable[[], torch.Tensor]] = {
        "matmul": lambda: x @ weight,
        "gelu": lambda: torch.nn.functional.gelu(x),
        "softmax": lambda: x.softmax(-1),
        "norm": lambda: torch.nn.functional.layer_norm(x, (512,)),
        "add": lambda: x + x,
    }
    return units[work]


@suite.build
def build(case: flopwatch.Case) -> Callable[[], None]:
    unit = make_unit(case.work, case.rows)
    units = 20 if case.variant == "yardstick" else UNITS

    def work() -> None:
        for _ in repeat(None, units):
            unit()

    return work
