"""A phase clears the environment variables."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("clears_its_environment", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    os.environ.clear()


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
