"""A phase writes JSON that is no message to every descriptor."""

import contextlib
import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|timeout|ok|wrong"}

GARBAGE = b"[1, 2]\nnull\n7\n{}\n"

suite = flopwatch.Suite("writes_json_of_no_message", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, GARBAGE)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
