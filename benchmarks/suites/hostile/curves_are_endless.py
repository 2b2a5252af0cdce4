"""Curves never end."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("curves_are_endless", axes={"n": [1]}, variants=["good", "bad"])


def take():
    while True:
        yield {"loss": 1.0}


@suite.build
def build(case):
    if case.variant == "bad":
        return flopwatch.Workload(phases={"call": lambda: None}, curves=take)
    return lambda: None
