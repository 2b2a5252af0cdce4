"""The exception's text has NUL, escapes and a bell."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_control_characters", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    raise ValueError("\0\x1b[2J\x1b]0;title\x07\r\b")


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
