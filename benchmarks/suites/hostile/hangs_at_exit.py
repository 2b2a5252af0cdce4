"""An exit handler never ends."""

import atexit
import time

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("hangs_at_exit", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    atexit.register(time.sleep, 1e6)
    return lambda: None
