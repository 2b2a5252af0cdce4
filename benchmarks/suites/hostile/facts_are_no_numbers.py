"""A fact is NaN."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("facts_are_no_numbers", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return flopwatch.Workload(phases={"call": lambda: None}, facts={"speed": float("nan")})
