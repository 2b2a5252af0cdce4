"""A phase sends its process SIGBUS."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("dies_of_sigbus", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.kill(os.getpid(), signal.SIGBUS)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
