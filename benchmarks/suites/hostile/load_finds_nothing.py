"""The file has no suite."""

EXPECT = None
x = 1
