"""A phase prints 100 kB a call, of bytes that are no text."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("prints_a_lot", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    os.write(1, b"\xff\x1b[31m" * 20_000)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
