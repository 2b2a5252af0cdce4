"""A condition is a number."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("conditions_are_numbers", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return flopwatch.Workload(phases={"call": lambda: None}, conditions={"autocast": 3})
