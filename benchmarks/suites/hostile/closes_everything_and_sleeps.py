"""A phase closes every descriptor, the standard ones too, and sleeps."""

import os
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout|crash"}

suite = flopwatch.Suite("closes_everything_and_sleeps", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    os.closerange(0, 1024)
    time.sleep(1e6)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
