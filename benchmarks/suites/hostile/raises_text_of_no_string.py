"""The exception's __str__ gives a number."""

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("raises_text_of_no_string", axes={"n": [1]}, variants=["good", "bad"])


class Odd(Exception):
    def __str__(self):
        return 7


def misbehave():
    raise Odd


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
