"""Importing the suite raises."""

EXPECT = None
raise ValueError("no suite")
