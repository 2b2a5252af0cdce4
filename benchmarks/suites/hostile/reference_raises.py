"""The reference raises."""

import flopwatch

EXPECT = {"good": "ok|crash", "bad": "ok|crash"}

suite = flopwatch.Suite("reference_raises", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return lambda: None


@suite.reference
def count(case):
    raise ValueError("no reference")
