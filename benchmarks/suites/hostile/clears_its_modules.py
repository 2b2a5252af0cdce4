"""A phase clears the table of modules."""

import sys

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("clears_its_modules", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    sys.modules.clear()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
