"""A phase reads from the standard input."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|ok"}

suite = flopwatch.Suite("waits_for_input", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    input()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
