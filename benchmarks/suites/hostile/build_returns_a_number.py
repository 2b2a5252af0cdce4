"""The build function returns a number."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("build_returns_a_number", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return 7
