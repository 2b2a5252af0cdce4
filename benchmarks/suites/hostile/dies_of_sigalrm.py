"""An alarm rings in a phase."""

import signal
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("dies_of_sigalrm", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(30)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
