"""The reset function never ends."""

import time

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("reset_hangs", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return flopwatch.Workload(phases={"call": lambda: None}, reset=lambda: time.sleep(1e6))
