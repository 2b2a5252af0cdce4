"""A phase sends its process SIGILL, as a bad instruction does."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("dies_of_sigill", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.kill(os.getpid(), signal.SIGILL)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
