"""A phase replaces the clock by one that stands still."""

import time

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash|timeout"}

suite = flopwatch.Suite("stops_the_clock", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    time.perf_counter_ns = lambda: 0
    time.perf_counter = lambda: 0.0


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
