"""A phase stops the process that forked it."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash|timeout"}

suite = flopwatch.Suite("stops_the_server", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.kill(os.getppid(), signal.SIGSTOP)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
