"""The result is infinite."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "wrong"}

suite = flopwatch.Suite("result_is_infinite", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return {"good": lambda: torch.ones(4), "bad": lambda: torch.full((4,), float("inf"))}[
        case.variant
    ]
