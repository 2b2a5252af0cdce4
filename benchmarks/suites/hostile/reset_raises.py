"""The reset function raises."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("reset_raises", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None

    def reset():
        raise ValueError("cannot be reset")

    return flopwatch.Workload(phases={"call": lambda: None}, reset=reset)
