"""The build function kills its process."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("build_dies", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    os.kill(os.getpid(), signal.SIGKILL)
