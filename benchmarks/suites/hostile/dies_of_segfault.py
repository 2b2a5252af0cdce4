"""A phase reads address 0."""

import ctypes

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("dies_of_segfault", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        ctypes.string_at(0)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
