"""An axis has values that JSON cannot hold."""

import flopwatch

EXPECT = None

suite = flopwatch.Suite("objects", axes={"n": [object()]}, variants=["a"])


@suite.build
def build(case):
    return lambda: None
