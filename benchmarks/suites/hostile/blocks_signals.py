"""A phase blocks every signal, and sleeps."""

import signal
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("blocks_signals", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    time.sleep(1e6)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
