"""Counting bytes kills the process."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok|crash", "bad": "ok|crash"}

suite = flopwatch.Suite("bytes_die", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    return lambda: None


@suite.bytes
def count(case):
    os.kill(os.getpid(), signal.SIGKILL)
