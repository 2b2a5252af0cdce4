"""An axis has a value of 120,000 numbers."""

import flopwatch

EXPECT = {"good": "ok|crash", "bad": "ok|crash"}

suite = flopwatch.Suite(
    "long_axis_value", axes={"n": [list(range(120_000))]}, variants=["good", "bad"]
)


@suite.build
def build(case):
    return lambda: None
