"""Counting FLOPs raises."""

import flopwatch

EXPECT = {"good": "ok|crash", "bad": "ok|crash"}

suite = flopwatch.Suite("flops_raise", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return lambda: None


@suite.flops
def count(case):
    raise ValueError("no count")
