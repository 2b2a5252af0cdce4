"""A phase kills the process that forked it."""

import os
import signal
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("kills_the_server", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
