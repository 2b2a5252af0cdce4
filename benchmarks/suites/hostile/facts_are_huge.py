"""A fact has 400 digits."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|ok"}

suite = flopwatch.Suite("facts_are_huge", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return flopwatch.Workload(phases={"call": lambda: None}, facts={"parameters": 10**400})
