"""The instruments raise."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("instrument_raises", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None

    def instrument(stopwatch):
        raise ValueError("no instruments")

    return flopwatch.Workload(phases={"call": lambda: None}, instrument=instrument)
