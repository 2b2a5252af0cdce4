"""The exception's text has 100,000 lines."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_many_lines", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise ValueError("line\n" * 100_000)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
