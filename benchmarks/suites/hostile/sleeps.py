"""A phase sleeps for ever."""

import time

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("sleeps", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    time.sleep(1e6)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
