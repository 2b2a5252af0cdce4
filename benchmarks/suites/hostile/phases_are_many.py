"""A workload has 5,000 phases."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("phases_are_many", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return {f"phase {number}": lambda *_: None for number in range(5000)}
