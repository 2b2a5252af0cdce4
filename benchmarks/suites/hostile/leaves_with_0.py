"""A phase leaves the process with exit code 0."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("leaves_with_0", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os._exit(0)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
