"""A phase forks; the child leaves and is waited for."""

import os

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("forks_properly", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
