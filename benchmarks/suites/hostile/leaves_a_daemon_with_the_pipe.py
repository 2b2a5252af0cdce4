"""A process in a session of its own holds the worker's pipe open."""

import subprocess

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

suite = flopwatch.Suite("leaves_a_daemon_with_the_pipe", axes={"n": [1]}, variants=["good", "bad"])


calls = []


def misbehave():
    calls.append(1)
    if len(calls) > 20:
        if len(calls) == 21:
            subprocess.Popen(["sleep", "600"], start_new_session=True, close_fds=False)


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
