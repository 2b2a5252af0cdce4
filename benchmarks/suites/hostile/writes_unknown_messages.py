"""A phase writes messages of unknown kinds."""

import contextlib
import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|timeout|ok|wrong"}

GARBAGE = b'{"event": "call", "function": "os:system"}\n{"event": 3}\n'

suite = flopwatch.Suite("writes_unknown_messages", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, GARBAGE)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
