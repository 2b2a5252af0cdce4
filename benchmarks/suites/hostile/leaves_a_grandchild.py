"""A phase leaves a process in a session of its own."""

import subprocess

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("leaves_a_grandchild", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        if len(calls) == 21:
            subprocess.Popen(["sleep", "600"], start_new_session=True)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
