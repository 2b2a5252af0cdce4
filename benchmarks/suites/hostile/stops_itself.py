"""A phase stops its process."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("stops_itself", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    os.kill(os.getpid(), signal.SIGSTOP)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
