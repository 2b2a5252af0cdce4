"""The build function takes all memory."""

import flopwatch

EXPECT = {"good": "ok", "bad": "oom"}

suite = flopwatch.Suite("build_takes_all_memory", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return bytearray(1 << 50)
