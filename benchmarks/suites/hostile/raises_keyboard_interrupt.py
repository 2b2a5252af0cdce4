"""A phase raises KeyboardInterrupt."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_keyboard_interrupt", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise KeyboardInterrupt


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
