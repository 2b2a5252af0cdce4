"""A phase works in a folder that it removes."""

import os
import tempfile

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("removes_its_folder", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
