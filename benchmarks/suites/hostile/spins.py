"""A phase never ends, and needs a core."""

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("spins", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    while True:
        pass


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
