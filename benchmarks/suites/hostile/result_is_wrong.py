"""The result is another one."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "wrong"}

suite = flopwatch.Suite("result_is_wrong", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return {"good": lambda: torch.ones(4), "bad": lambda: torch.zeros(4)}[case.variant]
