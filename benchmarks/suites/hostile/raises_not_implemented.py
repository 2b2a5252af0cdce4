"""A phase raises NotImplementedError."""

import flopwatch

EXPECT = {"good": "ok", "bad": "unsupported"}

suite = flopwatch.Suite("raises_not_implemented", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise NotImplementedError("later")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
