"""FLOPs are not a number."""

import flopwatch

EXPECT = {"good": "ok|crash", "bad": "ok|crash"}

suite = flopwatch.Suite("flops_are_nan", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return lambda: None


@suite.flops
def count(case):
    return {"call": float("nan")}
