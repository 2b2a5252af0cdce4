"""The result contains itself."""

import torch

import flopwatch

EXPECT = {"good": "ok", "bad": "ok|crash|wrong"}

suite = flopwatch.Suite("result_refers_to_itself", axes={"n": [1]}, variants=["good", "bad"])


def nest():
    found = []
    found.append(found)
    return found


@suite.build
def build(case):
    return {"good": lambda: torch.ones(4), "bad": nest}[case.variant]
