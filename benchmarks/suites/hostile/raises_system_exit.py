"""A phase calls sys.exit(0)."""

import sys

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_system_exit", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    sys.exit(0)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
