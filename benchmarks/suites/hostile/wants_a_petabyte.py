"""A phase asks for more memory than there is."""

import flopwatch

EXPECT = {"good": "ok", "bad": "oom"}

suite = flopwatch.Suite("wants_a_petabyte", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    bytearray(1 << 50)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
