"""A phase kills its process group."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("kills_its_group", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.killpg(0, signal.SIGKILL)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
