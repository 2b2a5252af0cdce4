"""Records of a monitored run in, one summary out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flopwatch.analysis.monitored_changes import find_run_changes, name_alike
from flopwatch.analysis.monitored_run import RunSummary, split_runs, summarize_run
from flopwatch.analysis.summary import summarize
from flopwatch.analysis.warnings import find_warnings
from flopwatch.records.monitored import CountedFlops
from flopwatch.records.record import Record
from flopwatch.settings import Settings
from tests.monitor_tools import BEGAN_S, FLOPS, H100, MS, TOKENS, Loop, restart

ON_GPU = {"settings": Settings(device="cuda"), "environment": H100}
PEAK = 989.4e12


def summarize_all(*records: Record) -> RunSummary:
    found = summarize_run(records)
    assert found is not None
    return found


def test_parts_of_the_mean_step_add_up_exactly() -> None:
    run = summarize_all(Loop(200, ranks=2).record())
    assert sum(part.mean_ns for part in run.parts) == pytest.approx(run.mean_step_ns, rel=1e-12)
    assert sum(part.share for part in run.parts) == pytest.approx(1, rel=1e-12)
    shares = {part.name: part.share for part in run.parts}
    assert list(shares) == [
        "data", "forward", "loss", "backward", "communication", "optimizer", "other",
    ]  # fmt: skip
    assert shares["forward"] == pytest.approx(6 / 26, abs=0.02)
    assert shares["other"] == pytest.approx(1 / 26, abs=0.01)


def test_parts_that_only_some_steps_have_count_over_all_steps() -> None:
    record = Loop(100).record()
    assert record.monitored is not None
    rank = record.monitored.ranks[0]
    rank.parts_ns["data"][10::2] = [None] * 45
    run = summarize_all(record)
    assert run.find_part("data").share == pytest.approx(0.5 / 23.5, rel=0.1)  # type: ignore[union-attr]


def test_mfu_counts_useful_tokens_and_hfu_what_was_computed() -> None:
    record = Loop(100).record(**ON_GPU)
    assert record.monitored is not None
    rank = record.monitored.ranks[0]
    padded = replace(rank, tokens=[TOKENS] * 100, padded_tokens=[TOKENS * 5 // 4] * 100)
    flops = replace(FLOPS, hardware=8e6)
    monitored = replace(record.monitored, ranks=[padded], flops=flops)
    run = summarize_all(replace(record, monitored=monitored))
    used, tokens = run.utilisation, run.tokens
    assert used is not None
    assert tokens is not None
    per_s = TOKENS / run.step_ns.value * 1e9
    assert tokens.per_s == pytest.approx(per_s)
    assert tokens.padding_share == pytest.approx(0.2)
    assert used.mfu == pytest.approx(per_s * 6e6 / PEAK, rel=0.01)
    assert used.hfu == pytest.approx(1.25 * per_s * 8e6 / PEAK, rel=0.01)
    assert (used.convention, used.peak) == ("exact", "nominal")


def test_flops_of_micro_batches_need_no_tokens() -> None:
    flops = CountedFlops(model=2e10, hardware=None, dtype="bfloat16", source="module",
                         convention="counted", unit="micro-batch")  # fmt: skip
    record = Loop(50, ranks=2).record(**ON_GPU, flops=flops, tokens_per_step=None)
    run = summarize_all(record)
    assert run.tokens is None
    assert run.utilisation is not None
    assert run.utilisation.mfu == pytest.approx(2e10 / run.step_ns.value * 1e9 / PEAK, rel=0.01)
    assert run.utilisation.hfu is None


def test_a_missing_mfu_says_why_and_what_to_do() -> None:
    without_peak = summarize_all(Loop(20).record())
    assert without_peak.utilisation is not None
    assert without_peak.utilisation.mfu is None
    assert "flopwatch peaks" in (without_peak.missing or "")
    told = "give Monitor a model"
    assert summarize_all(Loop(20).record(flops=None, flops_missing=told)).missing == told
    no_tokens = summarize_all(Loop(20).record(tokens_per_step=None))
    assert "tokens_per_step" in (no_tokens.missing or "")


def test_energy_of_a_token_is_that_of_the_meters_over_the_tokens_between_readings() -> None:
    run = summarize_all(Loop(100).record(**ON_GPU))
    assert run.energy is not None
    assert run.energy.power_w == pytest.approx(300, rel=0.1)
    assert run.energy.j_per_token == pytest.approx(run.energy.energy_j / (100 * TOKENS), rel=0.02)


def test_memory_is_the_most_that_any_rank_held() -> None:
    memory = summarize_all(Loop(20, ranks=2).record()).memory
    assert (memory.peak_bytes, memory.phases_bytes) == (2**32, {"forward": 3 * 2**30})


def test_restarts_are_one_run_and_another_run_of_the_same_name_is_not() -> None:
    first = Loop(50, seed=1)
    second = Loop(50, seed=2, first_step=40, began_s=BEGAN_S + 100)
    killed, resumed = restart([first, second])
    again = Loop(30, seed=3, began_s=BEGAN_S + 500).record()
    runs = split_runs([again, resumed, killed])
    assert [[r.run_id for r in starts] for starts in runs] == [
        [killed.run_id, resumed.run_id], [again.run_id],
    ]  # fmt: skip
    run = summarize_all(killed, resumed)
    assert run.goodput is not None
    assert (run.goodput.steps, run.goodput.repeated_steps) == (90, 10)
    assert [start.steps for start in run.goodput.starts] == [40, 50]


def test_a_row_has_the_usual_columns_of_a_monitored_run() -> None:
    killed, resumed = restart([Loop(50), Loop(50, first_step=50, began_s=BEGAN_S + 100)], **ON_GPU)
    (row,) = summarize([killed, resumed])
    assert row.record is resumed
    assert row.monitored is not None
    assert row.monitored.steps == 100
    assert row.total_ns == row.monitored.step_ns
    assert row.tokens_per_s == pytest.approx(TOKENS / row.monitored.step_ns.value * 1e9)
    assert row.utilisation is not None
    assert row.utilisation.mfu == row.monitored.utilisation.mfu  # type: ignore[union-attr]


def test_a_run_without_any_step_is_a_row_without_time() -> None:
    record = Loop(10).record(ranks=[])
    assert summarize_run([record]) is None
    (row,) = summarize([record])
    assert (row.record.status, row.total_ns, row.monitored) == ("skipped", None, None)


def test_the_interval_of_very_many_steps_is_that_of_their_blocks() -> None:
    rng = np.random.default_rng(0)
    loop = Loop(10)
    record = loop.record()
    assert record.monitored is not None
    count = 20_000
    times = (20 * MS * np.exp(0.05 * rng.normal(size=count))).tolist()
    rank = replace(
        record.monitored.ranks[0], steps=list(range(count)), time_ns=times,
        begin_ns=np.cumsum([0.0, *times[:-1]]).tolist(), parts_ns={},
        tokens=[None] * count, padded_tokens=[None] * count, micro_batches=[1] * count,
        arrived_ns=[None] * count,
    )  # fmt: skip
    monitored = replace(record.monitored, ranks=[rank])
    run = summarize_all(replace(record, monitored=monitored))
    assert run.step_ns.value == pytest.approx(20 * MS, rel=0.005)
    assert run.step_ns.low < 20 * MS < run.step_ns.high  # type: ignore[operator]
    assert run.step_ns.half_width < 0.005  # type: ignore[operator]


# Two runs


def test_the_part_that_moved_is_named_and_the_others_are_not() -> None:
    old, new = Loop(300, seed=1), Loop(300, seed=2)
    new.parts_ns[0]["data"] += 3 * MS
    (change,) = find_run_changes([old.record()], [new.record(case_id="other")])
    assert [part.name for part in change.parts if part.has_moved] == ["data"]
    assert change.step.has_moved
    assert change.step.change_ns == pytest.approx(3 * MS, rel=0.15)
    moves = sum(part.change_ns for part in change.parts)
    assert moves == pytest.approx(change.step.change_ns, rel=1e-6)


def test_two_runs_of_the_same_code_have_no_moved_part() -> None:
    moved = 0
    for seed in range(20):
        records = [Loop(200, seed=2 * seed + side).record() for side in (0, 1)]
        (change,) = find_run_changes(records[:1], records[1:])
        moved += sum(part.has_moved for part in (*change.parts, change.step))
    assert moved <= 3  # of 140, at 99 %


def test_runs_of_different_names_are_compared_where_each_side_has_one() -> None:
    one, two = Loop(50).record(), Loop(50, seed=1).record(case_id="x", variant="faster")
    old, new = name_alike([one], [two])
    assert [record.case_id for record in (*old, *new)] == ["x", "x"]
    assert name_alike([one, two], [two]) == ([one, two], [two])


# Warnings


def warn(*records: Record) -> dict[str, str]:
    return {warning.kind: warning.fact for warning in find_warnings(records)}


def test_a_healthy_run_has_no_warnings() -> None:
    assert warn(Loop(4000, sigma=0.01).record()) == {}


def test_each_loss_has_its_warning() -> None:
    loop = Loop(300, ranks=2, seed=1)
    loop.parts_ns[1]["data"] += 8 * MS
    loop.parts_ns[0]["data"] += 8 * MS
    loop.parts_ns[1]["forward"] += 4 * MS
    for place in range(20, 300, 20):
        loop.stall(place, "garbage collection", 60 * MS)
    loop.pause(100, "checkpoint", 5e9)
    killed, resumed = restart([loop, Loop(200, ranks=2, first_step=250, began_s=BEGAN_S + 60)])
    found = warn(killed, resumed)
    assert set(found) == {
        "slow-steps", "straggler", "data-bound", "low-goodput", "did-not-finish",
    }  # fmt: skip
    assert "garbage collection" in found["slow-steps"]
    assert "50 steps repeated" in found["did-not-finish"]


def test_an_impossible_mfu_and_padding_are_told() -> None:
    record = Loop(200).record(**ON_GPU, flops=replace(FLOPS, model=9e9))
    assert record.monitored is not None
    rank = replace(record.monitored.ranks[0], tokens=[100] * 200, padded_tokens=[200] * 200)
    found = warn(replace(record, monitored=replace(record.monitored, ranks=[rank])))
    assert "50 % of the computed tokens are padding" in found["padding"]
    assert "is impossible" in warn(record)["impossible-mfu"]
