"""The result has a dtype of other numbers."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "wrong|crash"}

suite = flopwatch.Suite("result_has_another_dtype", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return {
        "good": lambda: torch.ones(4),
        "bad": lambda: torch.ones(4, dtype=torch.complex64) * 2j,
    }[case.variant]
