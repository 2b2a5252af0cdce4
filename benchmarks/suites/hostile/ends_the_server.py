"""A phase sends SIGTERM to the process that forked it."""

import os
import signal
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|ok"}

suite = flopwatch.Suite("ends_the_server", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(0.2)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
