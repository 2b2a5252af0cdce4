"""A phase recurses without end."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("recurses", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    return misbehave()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
