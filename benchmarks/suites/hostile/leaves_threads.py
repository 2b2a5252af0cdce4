"""Threads that never end are left behind."""

import threading
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("leaves_threads", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    threading.Thread(target=time.sleep, args=(1e6,)).start()
    return lambda: None
