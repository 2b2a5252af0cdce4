"""A phase raises."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_exception", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise ValueError("no")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
