"""A phase writes JSON that is 100,000 levels deep."""

import contextlib
import os

import flopwatch

EXPECT = {"good": "ok", "bad": "crash|timeout|ok|wrong"}

GARBAGE = b"[" * 100_000 + b"\n"

suite = flopwatch.Suite("writes_deep_json", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, GARBAGE)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
