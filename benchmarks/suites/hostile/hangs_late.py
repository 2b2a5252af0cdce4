"""A phase hangs after twenty calls."""

import time

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("hangs_late", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        time.sleep(1e6)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
