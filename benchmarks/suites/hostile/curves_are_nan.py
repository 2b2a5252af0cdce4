"""A curve becomes NaN."""

import flopwatch

EXPECT = {"good": "ok", "bad": "wrong|ok"}

suite = flopwatch.Suite("curves_are_nan", axes={"n": [1]}, variants=["good", "bad"])


def take():
    yield {"loss": 1.0}
    yield {"loss": float("nan")}


@suite.build
def build(case):
    if case.variant == "bad":
        return flopwatch.Workload(phases={"call": lambda: None}, curves=take)
    return lambda: None
