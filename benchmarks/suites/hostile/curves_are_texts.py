"""Points of a curve are texts."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash|wrong"}

suite = flopwatch.Suite("curves_are_texts", axes={"n": [1]}, variants=["good", "bad"])


def take():
    yield "loss"


@suite.build
def build(case):
    if case.variant == "bad":
        return flopwatch.Workload(phases={"call": lambda: None}, curves=take)
    return lambda: None
