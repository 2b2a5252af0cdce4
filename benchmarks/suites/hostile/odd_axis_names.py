"""Axes have names with control characters, and none at all."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite(
    "odd_axis_names", axes={"\n\x1b[2J": [1], "": [2], "a=b,c": ["d=e,f"]}, variants=["good", "bad"]
)


@suite.build
def build(case):
    return lambda: None
