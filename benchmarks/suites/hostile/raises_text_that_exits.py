"""The exception's __str__ leaves the process."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_text_that_exits", axes={"n": [1]}, variants=["good", "bad"])


class Leaver(Exception):
    def __str__(self):
        raise SystemExit(0)


def misbehave():
    raise Leaver


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
