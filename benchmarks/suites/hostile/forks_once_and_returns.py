"""A phase forks in the middle of sampling, and both processes go on."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|ok|timeout|wrong"}

suite = flopwatch.Suite("forks_once_and_returns", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        if len(calls) == 21:
            os.fork()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
