"""What is said of monitored runs: sentences first, then tables that add up."""

from __future__ import annotations

import re

import pytest

from flopwatch.analysis.monitored_run import RunSummary, summarize_run
from flopwatch.analysis.summary import summarize
from flopwatch.output.answers import answer_suites
from flopwatch.output.monitor_tables import (
    answer_run,
    list_clock_lines,
    list_facts,
    list_run_sheets,
)
from flopwatch.records.record import Record
from flopwatch.settings import Settings
from tests.monitor_tools import H100, MS, Loop, make_stalled_run

ON_GPU = {"settings": Settings(device="cuda"), "environment": H100}


def summarize_all(*records: Record) -> RunSummary:
    found = summarize_run(records)
    assert found is not None
    return found


def test_the_answer_has_mfu_goodput_slow_steps_and_the_straggler() -> None:
    speed, losses, ranks = answer_run(summarize_all(*make_stalled_run(**ON_GPU)))
    assert "% MFU (exact, nominal peak 989 TFLOP/s bfloat16)" in speed
    assert "a step, the median of 490 steady steps on 4 ranks." in speed
    assert "advanced training over 2 starts" in losses
    assert "of the wall clock waits for data" in losses
    assert "5 slow steps lost" in losses
    assert "1 garbage collection" in losses
    assert ranks.startswith("Rank 2 makes the others wait for ")


def test_without_a_peak_the_answer_says_what_to_do() -> None:
    speed, losses = answer_run(summarize_all(Loop(100).record()))
    assert "no MFU: the nominal peak of a CPU is not known; `flopwatch peaks`" in speed
    assert "no slow steps" in losses


def test_of_one_cause_it_is_named_once() -> None:
    loop = Loop(200)
    for place in (50, 60, 70):
        loop.stall(place, "garbage collection", 50 * MS)
    losses = answer_run(summarize_all(loop.record()))[1]
    assert re.search(r"3 slow steps lost 1\d\d ms: garbage collection\.", losses)


def test_lines_of_the_wall_clock_add_up() -> None:
    run = summarize_all(*make_stalled_run())
    lines = list(list_clock_lines(run))
    assert sum(line.share for line in lines) == pytest.approx(1)
    assert [line.name for line in lines][0] == "training"
    names = {line.name for line in lines}
    assert {"pause: evaluation", "pause: checkpoint", "steps that a restart repeated"} <= names


def test_tables_of_a_run() -> None:
    sheets = {sheet.title: sheet for sheet in list_run_sheets(summarize_all(*make_stalled_run()))}
    assert list(sheets) == [
        "run, the mean step", "run, the wall clock", "run, slow steps", "run, ranks", "run, facts",
    ]  # fmt: skip
    slow = sheets["run, slow steps"].groups[0]
    assert [row[0] for row in slow] == ["50", "90", "120", "150", "170"]
    assert [row[3].partition(",")[0] for row in slow] == [
        "data", "garbage collection", "rank 3 came late", "after a pause", "of unknown cause",
    ]  # fmt: skip
    assert sheets["run, the mean step"].groups[0][-1][0] == "mean step"
    assert dict(list_facts(summarize_all(*make_stalled_run())))["peak memory"] == "4.00 GiB"


def test_many_slow_steps_are_counted_and_the_worst_listed() -> None:
    loop = Loop(400)
    for number, place in enumerate(range(20, 400, 10)):
        loop.stall(place, "data", (50 + number) * MS)
    (slow,) = [s for s in list_run_sheets(summarize_all(loop.record())) if "slow" in s.title]
    assert len(slow.groups[0]) == 10
    assert slow.remarks == ["and 28 more that lost less; --json has all"]


def test_each_run_has_its_own_answer() -> None:
    runs = [Loop(50).record(), Loop(50).record(case_id="n", variant="another", baseline="another")]
    answers = answer_suites(summarize(runs))
    assert [answer.title for answer in answers] == ["monitor run", "monitor another"]
    assert all(len(answer.sentences) == 2 for answer in answers)
