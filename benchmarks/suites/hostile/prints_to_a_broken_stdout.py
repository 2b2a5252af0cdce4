"""The standard output is replaced by something that fails."""

import sys

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("prints_to_a_broken_stdout", axes={"n": [1]}, variants=["good", "bad"])


class Broken:
    def write(self, text):
        raise OSError("broken")

    flush = write


@suite.build
def build(case):
    sys.stdout = sys.stderr = Broken()
    return lambda: None
