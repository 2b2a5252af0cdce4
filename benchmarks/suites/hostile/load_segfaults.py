"""Importing the suite reads address 0."""

import ctypes

EXPECT = None

ctypes.string_at(0)
