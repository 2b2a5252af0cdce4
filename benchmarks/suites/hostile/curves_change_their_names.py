"""Points of a curve have different names."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash|wrong"}

suite = flopwatch.Suite("curves_change_their_names", axes={"n": [1]}, variants=["good", "bad"])


def take():
    yield {"loss": 1.0}
    yield {"accuracy": 1.0}


@suite.build
def build(case):
    if case.variant == "bad":
        return flopwatch.Workload(phases={"call": lambda: None}, curves=take)
    return lambda: None
