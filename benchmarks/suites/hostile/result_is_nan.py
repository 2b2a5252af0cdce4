"""The result is not a number."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "wrong"}

suite = flopwatch.Suite("result_is_nan", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return {"good": lambda: torch.ones(4), "bad": lambda: torch.full((4,), float("nan"))}[
        case.variant
    ]
