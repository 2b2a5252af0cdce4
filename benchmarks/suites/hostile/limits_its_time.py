"""A phase allows itself one second of processor time, and spins."""

import resource

import flopwatch

EXPECT = {"good": "ok", "bad": "crash"}

suite = flopwatch.Suite("limits_its_time", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    while True:
        pass


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
