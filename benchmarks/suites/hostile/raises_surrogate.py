"""The exception's text has a lone surrogate."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_surrogate", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise ValueError("\ud800 \udfff")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
