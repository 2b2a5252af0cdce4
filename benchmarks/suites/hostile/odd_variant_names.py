"""Variants have names with control characters, markup, and a million characters."""

import flopwatch

EXPECT = {"good": "ok"}

suite = flopwatch.Suite(
    "odd_variant_names",
    axes={"n": [1]},
    variants=["good", "\n\x1b[2J", "<script>alert(1)</script>", "[bold]x[/]", "x" * 100_000],
)


@suite.build
def build(case):
    return lambda: None
