"""The registry of columns: one entry shows in every kind of output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flopwatch.analysis.summary import Row, summarize
from flopwatch.output import columns
from flopwatch.output.columns import (
    COLUMNS,
    Column,
    describe_columns,
    list_columns,
    quantity,
)
from flopwatch.output.console import fit
from flopwatch.output.page import render_page
from flopwatch.output.selection import query_results, select_rows
from flopwatch.output.table_request import WRITERS, Request, answer
from flopwatch.records.record import encode
from tests.output.test_case_tables import sampled

PARAMS = {"size": 4}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    entry = quantity(
        "energy_j", "count", "energy of a run", lambda row: 7.0 * len(row.record.variant), "detail"
    )
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS[:-1], entry, COLUMNS[-1]))
    return summarize(
        [
            sampled(1e6, 2e6, case_id="1", variant="dense", params=PARAMS, group_id="g"),
            sampled(0.5e6, 1e6, case_id="2", variant="fast", params=PARAMS, group_id="g"),
        ]
    )


def write(rows: list[Row], form: str, **asked: str) -> str:
    return WRITERS[form](answer(rows, Request(**asked), form))


def test_a_registered_column_is_in_the_usual_table(rows: list[Row]) -> None:
    sheet, *_ = answer(rows, Request(), "terminal").make_sheets()
    place = sheet.headings.index("energy j")
    assert [cells[place] for cells in sheet.groups[0]] == ["35", "28"]


def test_a_registered_column_can_be_chosen_sorted_by_and_selected(rows: list[Row]) -> None:
    assert write(rows, "csv", columns="variant,energy_j", sort="energy_j") == (
        "variant,energy_j\r\nfast,28.0\r\ndense,35.0\r\n"
    )
    (row,) = select_rows(rows, list_columns(rows), "energy_j > 30")
    assert row.record.variant == "dense"


def test_a_registered_column_can_be_a_pivots_value(rows: list[Row]) -> None:
    (sheet,) = answer(
        rows, Request(pivot="row=variant,col=size,value=energy_j"), "terminal"
    ).make_sheets()
    assert sheet.groups == [[["dense", "35"], ["fast", "28"]]]


def test_a_registered_column_is_in_csv_and_json(rows: list[Row]) -> None:
    heading, first, _ = write(rows, "csv").splitlines()
    assert first.split(",")[heading.split(",").index("energy_j")] == "35.0"
    assert [each["energy_j"] for each in json.loads(write(rows, "json"))] == [35.0, 28.0]


def test_a_registered_column_is_in_the_sql_view(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "demo.jsonl"
    path.write_bytes(b"".join(encode(row.record) + b"\n" for row in rows))
    found = query_results(
        [path], "SELECT variant, energy_j FROM cases ORDER BY speedup NULLS FIRST"
    )
    assert (found.columns, found.rows) == (
        ["variant", "energy_j"],
        [("dense", 35.0), ("fast", 28.0)],
    )


def test_a_registered_column_is_on_the_page(rows: list[Row]) -> None:
    page = render_page([row.record for row in rows])
    assert ">energy j</th>" in page
    assert "<td data-v=35>35</td>" in page


def test_a_registered_column_is_listed_with_its_unit_and_meaning(rows: list[Row]) -> None:
    headings, listed = describe_columns(rows)
    assert headings == ["column", "unit", "meaning"]
    assert ["energy_j", "count", "energy of a run"] in listed


def test_words_may_stand_anywhere_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = quantity("kernel", "", "which kernel ran", lambda row: "triton", "detail")
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS[:-1], entry))
    records = [sampled(1e6, 2e6, case_id="1", variant="dense", params=PARAMS, group_id="g")]
    sheet, *_ = answer(summarize(records), Request(), "terminal").make_sheets()
    assert sheet.headings[-1] == "kernel"
    assert sheet.words == [name in ("variant", "verdict", "kernel") for name in sheet.headings]
    assert sheet.text_columns == 1
    assert all("kernel" not in narrow.headings for narrow in fit(sheet, 45))


def test_every_column_has_a_meaning_and_a_name_of_its_own() -> None:
    declared = [each for each in COLUMNS if isinstance(each, Column)]
    assert len(declared) > 30
    assert all(each.meaning for each in declared)
    assert len({each.name.casefold() for each in declared}) == len(declared)


def test_units_in_names_are_those_that_are_declared() -> None:
    units = {"_ns": "ns", "_bytes": "bytes", "tokens_per_s": "tokens/s", "flops_per_s": "FLOP/s"}
    found = {
        each.name: (each.unit, unit)
        for each in COLUMNS
        if isinstance(each, Column)
        for ending, unit in units.items()
        if each.name.endswith(ending)
    }
    assert len(found) >= 6
    assert all(declared == named for declared, named in found.values())
