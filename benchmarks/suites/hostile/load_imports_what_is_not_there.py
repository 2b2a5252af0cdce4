"""Importing the suite imports what is not there."""

EXPECT = None
