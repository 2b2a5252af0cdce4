"""A phase allows itself no more open files."""

import resource

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("limits_its_files", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
