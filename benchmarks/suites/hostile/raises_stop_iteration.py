"""A phase raises StopIteration."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_stop_iteration", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise StopIteration


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
