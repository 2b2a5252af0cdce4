"""A phase forks, and both processes go on."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|ok|timeout|wrong"}

suite = flopwatch.Suite("forks_and_returns", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    os.fork()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
