"""Importing the suite takes more memory than it may."""

EXPECT = None

kept = [bytearray(1 << 28) for _ in range(12)]  # zeros, which take no real memory
