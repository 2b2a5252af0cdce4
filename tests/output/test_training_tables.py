"""What ranks of a job did with their time, and what they held in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flopwatch.analysis.summary import Row, summarize
from flopwatch.output.training_tables import make_memory_sheets, make_rank_sheets
from flopwatch.records.record import Record
from tests.plot_tools import JOBS, make_pipeline


def list_rows(record: Record) -> list[Row]:
    return [row for row in summarize([record]) if row.total_ns]


def test_a_pipeline_has_stages_and_a_bubble() -> None:
    (sheet,) = make_rank_sheets(list_rows(make_pipeline()))
    names = [column.name for column in sheet.columns]
    cells = [dict(zip(names, row, strict=True)) for row in sheet.groups[0]]
    assert [cell["stage"] for cell in cells] == ["0", "1"]
    assert [cell["bubble"] for cell in cells] == ["2.00 ms (20 %)", "5.00 ms (50 %)"]
    assert [cell["working"] for cell in cells] == ["7.00 ms (70 %)", "4.00 ms (40 %)"]
    assert "bubble: for other stages" in sheet.conditions


def test_a_job_without_a_pipeline_has_neither() -> None:
    (sheet,) = make_rank_sheets([row for row in summarize(JOBS) if len(row.record.ranks) == 2])
    assert not {"stage", "bubble"} & {column.name for column in sheet.columns}


@pytest.mark.parametrize(("variants", "has_error"), [(1, True), (2, False)])
def test_memory_of_ranks_stands_beside_what_was_predicted(variants: int, has_error: bool) -> None:
    """Beside that of other variants in the same process, it is no error."""
    record = replace(make_pipeline(), predicted_memory_bytes={"parameters": 1e6})
    records = [replace(record, variant=f"pp2 {number}", case_id=str(number))
               for number in range(variants)]  # fmt: skip
    *_, sheet = make_memory_sheets(summarize(records))
    names = [column.name for column in sheet.columns]
    cells = [dict(zip(names, row, strict=True)) for group in sheet.groups for row in group]
    assert [cell["stage"] for cell in cells] == ["0", "1"] * variants
    assert [cell["peak"] for cell in cells][:2] == ["2.00 MiB", "3.00 MiB"]
    assert all(cell["predicted"] for cell in cells)
    assert all(bool(cell["error"]) == has_error for cell in cells)
