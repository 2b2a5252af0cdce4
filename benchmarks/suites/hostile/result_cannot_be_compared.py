"""The result raises when it is compared."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash|wrong"}

suite = flopwatch.Suite("result_cannot_be_compared", axes={"n": [1]}, variants=["good", "bad"])


class Touchy:
    def __eq__(self, other):
        raise ValueError("do not compare me")

    def __len__(self):
        raise ValueError("do not measure me")

    __hash__ = None


@suite.build
def build(case):
    return Touchy if case.variant == "bad" else (lambda: 1)
