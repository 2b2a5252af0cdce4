"""Phases have names with control characters, a surrogate, and none at all."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("phases_have_odd_names", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return {"": lambda: None, "a\n\x1b[2J": lambda _: None, "\ud800": lambda _: None}
