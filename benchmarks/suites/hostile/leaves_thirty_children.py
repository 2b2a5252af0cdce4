"""A phase leaves thirty processes."""

import subprocess

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("leaves_thirty_children", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        if len(calls) == 21:
            for _ in range(30):
                subprocess.Popen(["sleep", "600"])


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
