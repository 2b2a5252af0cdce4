"""A phase allows itself no larger files."""

import resource

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("limits_its_file_size", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
