"""A phase raises after twenty calls."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_late", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        raise ValueError("later")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
