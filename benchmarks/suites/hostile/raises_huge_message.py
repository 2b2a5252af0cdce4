"""The exception's text has 70 MB."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_huge_message", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise ValueError("x" * 70_000_000)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
