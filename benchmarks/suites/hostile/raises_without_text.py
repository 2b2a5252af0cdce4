"""The exception's __str__ raises."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_without_text", axes={"n": [1]}, variants=["good", "bad"])


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def misbehave():
    raise Unspeakable


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
