"""The suite has no build function."""

import flopwatch

EXPECT = None

suite = flopwatch.Suite("none", axes={"n": [1]}, variants=["a"])
