"""A phase replaces its process by another program."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("executes_another_program", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        os.execv("/bin/true", ["true"])


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
