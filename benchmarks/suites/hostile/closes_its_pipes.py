"""A phase closes every descriptor, and goes on."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|timeout"}

suite = flopwatch.Suite("closes_its_pipes", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    os.closerange(3, 1024)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
