"""The suite appends to its own file."""

import flopwatch

EXPECT = {"good": "ok", "bad": "ok"}

COPY = __file__ + ".changed"

suite = flopwatch.Suite("changes_its_own_file", axes={"n": [1]}, variants=["good", "bad"])


@suite.build
def build(case):
    with open(COPY, "a") as file:
        file.write("# more\n")
    return lambda: None
