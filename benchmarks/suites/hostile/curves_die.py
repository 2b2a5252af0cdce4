"""Taking the curves kills the process."""

import os
import signal

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("curves_die", axes={"n": [1]}, variants=["good", "bad"])


def take():
    yield {"loss": 1.0}
    os.kill(os.getpid(), signal.SIGKILL)


@suite.build
def build(case):
    if case.variant == "bad":
        return flopwatch.Workload(phases={"call": lambda: None}, curves=take)
    return lambda: None
