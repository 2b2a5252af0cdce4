"""A suite has 300 variants, of which one fails."""

import flopwatch

EXPECT = {"v0": "ok", "v299": "crash"}

suite = flopwatch.Suite(
    "many_variants", axes={"n": [1]}, variants=[f"v{number}" for number in range(300)]
)


@suite.build
def build(case):
    return (lambda: 1 / 0) if case.variant == "v299" else lambda: None
