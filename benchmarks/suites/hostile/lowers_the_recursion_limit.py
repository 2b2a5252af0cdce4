"""A phase lowers the limit of recursion."""

import sys

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("lowers_the_recursion_limit", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    sys.setrecursionlimit(40)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
