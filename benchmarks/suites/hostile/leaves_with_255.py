"""A phase leaves the process with exit code 255."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("leaves_with_255", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os._exit(255)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
