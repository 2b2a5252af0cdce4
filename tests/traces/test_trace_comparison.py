"""Two traces: what moved, by kind and by operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwatch.traces.explained_trace import explain_trace
from flopwatch.traces.trace_comparison import compare_traces
from tests.traces.trace_maker import TraceMaker, make_training_step


def test_changes_of_kinds_add_up_to_that_of_the_step(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(2):
        make_training_step(maker, 100.0 * number, number)
    old = explain_trace(maker.write(tmp_path / "old.json"))
    other = TraceMaker(device="AMD Instinct MI300X")
    make_training_step(other, 0.0, 1)
    for event in other.events:
        if event["name"].endswith("tn_n"):  # another name, three microseconds faster
            event["name"], event["dur"] = "Cijk_Alik_Bljk", 7
        if event["name"].startswith("ProfilerStep"):
            event["dur"] = 110
    new = explain_trace(other.write(tmp_path / "new.json"))
    found = compare_traces(old, new)
    assert found.change_ns == 10_000
    assert sum(row.change_ns for row in found.rows) == pytest.approx(10_000)
    moved = {row.name: row.change_ns for row in found.rows}
    assert moved["matmul"] == -3_000
    assert [row.name for row in found.rows][0] == "launch gaps"
    operators = {row.name: row for row in found.operators}
    assert operators["aten::addmm"].change_ns == -3_000
    assert operators["aten::addmm"].ratio == pytest.approx(0.7)
    assert operators["aten::mm"].change_ns == 0
