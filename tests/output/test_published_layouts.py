"""Published figures become records and are printed again, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.output.layouts import Printout, make_printout
from flopwatch.records.published import load, read_text
from flopwatch.records.record import decode, encode


def lay_out(name: str) -> Printout:
    """As read back from a results file."""
    records = [decode(encode(record)) for record in load(name)]
    return make_printout(summarize(records), name)


def test_the_dyad_text_is_printed_as_it_was() -> None:
    assert "\n".join(lay_out("dyad").lines) == read_text("dyad")


def test_every_switchback_line_is_printed_as_it_was() -> None:
    lines = lay_out("switchback").lines
    assert lines == read_text("switchback").splitlines()
    assert {len(json.loads(line)) for line in lines} == {25}
    assert len(lines) == 142


def read_mosaic_cells() -> list[list[str]]:
    """The headings and the rows of all tables, as texts."""
    return read_cells(read_text("mosaic").splitlines())


def read_cells(lines: Sequence[str]) -> list[list[str]]:
    rows = [line for line in lines if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    return [cells[0], *(row for row in cells if row[0].startswith("gpt"))]


def test_every_cell_of_the_mosaic_tables_is_printed_as_it_was() -> None:
    """From tokens/s: MFU and HFU are computed here, not kept."""
    cells = read_mosaic_cells()
    assert read_cells(lay_out("mosaic").lines) == cells
    assert len(cells) == 1 + 87


def test_every_cs336_table_is_printed_as_it_was() -> None:
    def figures(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(("+", "|", "tensor", "2.7B"))]

    published = figures(read_text("cs336"))
    assert figures("\n".join(lay_out("cs336").lines)) == published
    assert sum(line.startswith("| ") for line in published) == 5 * 5
    assert "2.7B: out of memory" in published
    assert published[-4:] == [
        "tensor(10.0001)",
        "tensor(9.9531, dtype=torch.float16)",
        "tensor(10.0021)",
        "tensor(10.0021)",
    ]


@pytest.mark.parametrize("name", ["dyad", "switchback", "cs336", "mosaic"])
def test_json_of_a_layout_is_json(name: str) -> None:
    assert json.loads(json.dumps(lay_out(name).content))
