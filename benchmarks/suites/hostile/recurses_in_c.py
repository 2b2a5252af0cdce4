"""A phase overflows the stack of C."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|ok"}

suite = flopwatch.Suite("recurses_in_c", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    nested = []
    for _ in range(3_000_000):
        nested = [nested]
    repr(nested)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
