"""A phase sends its process SIGPIPE."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("dies_of_sigpipe", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
