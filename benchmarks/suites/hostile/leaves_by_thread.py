"""A thread leaves the process."""

import os
import threading
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|ok"}

suite = flopwatch.Suite("leaves_by_thread", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        threading.Thread(target=os._exit, args=(5,)).start()
        time.sleep(1)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
