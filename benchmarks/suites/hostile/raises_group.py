"""A phase raises a group of exceptions."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_group", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
