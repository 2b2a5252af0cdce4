"""The reference never ends."""

import time

import flopwatch

EXPECT = {"good": "timeout", "bad": "timeout"}

suite = flopwatch.Suite("reference_hangs", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return lambda: None


@suite.reference
def count(case):
    time.sleep(1e6)
