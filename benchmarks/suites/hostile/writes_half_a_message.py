"""A phase writes the beginning of a message to every descriptor."""

import contextlib
import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|timeout|ok|wrong"}

GARBAGE = b'{"event": "sam'

suite = flopwatch.Suite("writes_half_a_message", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, GARBAGE)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
