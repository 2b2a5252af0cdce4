"""The reference kills the process."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok|crash", "bad": "ok|crash"}

suite = flopwatch.Suite("reference_dies", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return lambda: None


@suite.reference
def count(case):
    os.kill(os.getpid(), signal.SIGKILL)
