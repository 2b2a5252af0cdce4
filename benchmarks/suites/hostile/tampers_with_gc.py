"""A phase turns the garbage collector off and freezes it."""

import gc

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("tampers_with_gc", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    gc.disable()
    gc.freeze()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
