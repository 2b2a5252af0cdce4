"""A phase leaves a process in a session of its own, and is killed."""

import os
import signal
import subprocess

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("leaves_a_grandchild_and_dies", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
