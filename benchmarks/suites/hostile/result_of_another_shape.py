"""The result has another shape than the baseline's."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "wrong"}

suite = flopwatch.Suite("result_of_another_shape", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return {"good": lambda: torch.ones(4), "bad": lambda: torch.ones(3)}[case.variant]
