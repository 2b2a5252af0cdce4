"""A phase calls abort()."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("aborts", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.abort()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
