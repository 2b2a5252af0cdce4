"""Taking the curves never ends, without a point."""

import time

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|timeout"}

suite = flopwatch.Suite("curves_hang", axes={"n": [1]}, variants=["good", "bad"])


def take():
    yield {"loss": 1.0}
    time.sleep(1e6)


@suite.build
def build(case):
    if case.variant == "bad":
        return flopwatch.Workload(phases={"call": lambda: None}, curves=take)
    return lambda: None
