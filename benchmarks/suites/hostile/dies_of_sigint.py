"""A phase sends its process SIGINT."""

import os
import signal
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|timeout"}

suite = flopwatch.Suite("dies_of_sigint", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
