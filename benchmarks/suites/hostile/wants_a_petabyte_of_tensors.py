"""A phase asks torch for more memory than there is."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "oom|crash"}

suite = flopwatch.Suite("wants_a_petabyte_of_tensors", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    torch.empty(1 << 48)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
