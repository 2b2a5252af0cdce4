"""The build function never ends."""

import time

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("build_hangs", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    time.sleep(1e6)
