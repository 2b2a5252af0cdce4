"""A phase waits for a lock that it holds."""

import threading

import flopwatch

EXPECT = {"good": "ok", "bad": "timeout"}

suite = flopwatch.Suite("deadlocks", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
