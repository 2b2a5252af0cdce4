"""A phase leaves a process that has been forked twice, in a session of its own."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("leaves_a_daemon", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        if len(calls) == 21 and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", "600"])
            os._exit(0)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
