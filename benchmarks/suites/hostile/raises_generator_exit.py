"""A phase raises GeneratorExit."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_generator_exit", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise GeneratorExit


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
