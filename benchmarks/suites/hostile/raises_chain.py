"""A phase raises an exception with a chain of 500 causes."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_chain", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    error = None
    for number in range(500):
        try:
            raise ValueError(number) from error
        except ValueError as raised:
            error = raised
    raise error


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
