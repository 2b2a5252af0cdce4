"""A phase raises MemoryError of its own."""

import flopwatch

EXPECT = {"good": "ok", "bad": "oom"}

suite = flopwatch.Suite("raises_memory_error", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise MemoryError("too much")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
