"""A phase takes memory until there is none."""

import flopwatch

EXPECT = {"good": "ok", "bad": "oom"}

suite = flopwatch.Suite("fills_its_memory", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    kept = []
    while True:
        kept.append(bytearray(1 << 28))


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
