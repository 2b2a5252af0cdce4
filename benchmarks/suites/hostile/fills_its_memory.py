"""A phase takes memory until there is none."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "oom"}

suite = flopwatch.Suite("fills_its_memory", axes={"n": [1]}, variants=["good", "bad"])


def misbehave():
    kept = []
    while True:
        # Not written to: on a busy machine that could take longer than the time limit.
        kept.append(torch.empty(1 << 28, dtype=torch.uint8))


@suite.build
def build(case):
    return misbehave if case.variant == "bad" else lambda: None
