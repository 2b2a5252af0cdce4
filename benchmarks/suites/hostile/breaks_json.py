"""A phase replaces json.dumps."""

import json

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("breaks_json", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    json.dumps = None


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
