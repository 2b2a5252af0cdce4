"""A phase replaces the clock by one that runs backwards."""

import itertools
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash|timeout"}

suite = flopwatch.Suite("turns_the_clock_back", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    ticks = itertools.count()
    time.perf_counter_ns = lambda: -next(ticks)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
