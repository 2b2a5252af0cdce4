"""The exception's class has a name of a million characters."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_long_class_name", axes={"n": [1]}, variants=["good", "bad"])


LONG = type("E" * 1_000_000, (Exception,), {})


def misbehave():
    raise LONG("x")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
