"""The memory that is needed is not a number."""

import flopwatch

EXPECT = {"good": "ok|crash", "bad": "ok|crash"}

suite = flopwatch.Suite("memory_is_nan", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return lambda: None


@suite.memory
def count(case):
    return {"weights": float("nan")}
