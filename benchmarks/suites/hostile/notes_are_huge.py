"""A note has 70 MB."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash"}

suite = flopwatch.Suite("notes_are_huge", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    if case.variant == "good":
        return lambda: None
    return flopwatch.Workload(phases={"call": lambda: None}, notes=["x" * 70_000_000])
