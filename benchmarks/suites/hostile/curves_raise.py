"""Taking the curves raises."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("curves_raise", axes={"n": [1]}, variants=["good", "bad"])


def take():
    yield {"loss": 1.0}
    raise ValueError("no more")


@suite.build
def build(case):
    if case.variant == "bad":
        return flopwatch.Workload(phases={"call": lambda: None}, curves=take)
    return lambda: None
