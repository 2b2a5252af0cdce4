"""A phase ignores every signal that it can, and sleeps."""

import signal
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("ignores_signals", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(1e6)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
