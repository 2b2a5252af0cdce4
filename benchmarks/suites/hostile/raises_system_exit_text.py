"""A phase calls sys.exit with a text."""

import sys

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_system_exit_text", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    sys.exit("enough")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
