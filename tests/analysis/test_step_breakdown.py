"""Breakdowns of records: rows that add up, what they stand for, and operations below their
roofs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch.analysis.step_breakdown import (
    BreakdownRow,
    StepBreakdown,
    find_moved,
    make_breakdown,
)
from flopwatch.analysis.summary import summarize
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import LinearLayer, TrainingJob
from flopwatch.output.training_tables import make_rank_sheets
from flopwatch.prediction.calibration import make_stack
from flopwatch.records.published import load
from flopwatch.records.record import Rank, Record, Region
from flopwatch.settings import Settings
from tests.analysis.test_record_device import on_gpu, with_peaks
from tests.conftest import make_record
from tests.plot_tools import MODEL, add_peaks, make_step

CPU = make_stack(None, "cpu").parameters
MS = 1e6


def explain(record: Record) -> StepBreakdown:
    breakdown = make_breakdown(record)
    assert breakdown is not None
    assert math.fsum(row.time_ns for row in breakdown.rows) == breakdown.total_ns
    return breakdown


def rows_of(record: Record) -> dict[str, BreakdownRow]:
    return {row.key: row for row in explain(record).rows}


def make_layer(variant: str = "dense", count: float = 6e9, **changes: object) -> Record:
    """A linear layer of 1000 to 1000 for 1000 tokens: 100 ms."""
    content: dict[str, object] = {
        "suite": "dyad",
        "variant": variant,
        "params": {"level": "layer", "tokens": 1000, "shape": [1000, 1000], "dtype": "float32"},
        "job": LinearLayer(
            tokens=1000, inputs=1000, outputs=1000, dtype="float32", linear=variant
        ).to_dict(),
        "samples_ns": {"forward": [40 * MS] * 20, "backward": [60 * MS] * 20},
        "flops": {"forward": {"float32": count / 3}, "backward": {"float32": count * 2 / 3}},
        "conditions": {"dtype": "float32", "autocast": "off"},
    }
    return make_record(**{**content, **changes})


def make_job(**changes: object) -> Record:
    """Two ranks: the first waits for 1 ms of 10, both move data for 2 ms."""
    step = make_step()
    own_ns = {phase: list(times) for phase, times in step.samples_ns.items()}
    ranks = [
        Rank(samples_ns=own_ns, waiting_ns=[waiting] * 20, transfer_ns=[2 * MS] * 20)
        for waiting in (1 * MS, 0.0)
    ]
    params = {"model": MODEL, "seq_len": 32, "ranks": 2, "micro_batch": 4, "grad_accum": 1,
              "precision": "fp32", "optimizer": "adamw"}  # fmt: skip
    parallelism = Parallelism(data=2, sharding="ddp")
    job = TrainingJob(MODEL, 32, micro_batch=4, precision="fp32", parallelism=parallelism)
    content: dict[str, object] = {
        "suite": "training", "variant": "ddp", "baseline": "ddp", "params": params, "ranks": ranks,
        "job": job.to_dict(),
        "regions": {}, "instrumented_ns": [],
    }  # fmt: skip
    return replace(step, **{**content, **changes})  # type: ignore[arg-type]


# Rows


def test_a_step_by_hand() -> None:
    record = add_peaks(make_step(), flops_per_s=1e11, bytes_per_s=1e10)
    rows = rows_of(record)
    assert list(rows) == [
        "matmuls", "shape", "attention", "elements", "logits", "traffic", "optimizer", "gaps",
        "rest",
    ]  # fmt: skip
    parts = count_flops_by_part(TrainingJob(MODEL, 32, micro_batch=8))
    matmuls = sum(p.total for name, p in parts.items() if name not in ("scores", "values"))
    assert rows["matmuls"].time_ns == pytest.approx(matmuls / 1e11 * 1e9)
    assert rows["matmuls"].gain_ns == 0
    # 12 d + 2 F numbers forward and 23 d + 3 F backward, of 4 bytes, 256 tokens and 2 blocks
    shape = TrainingJob(MODEL, 32).shape
    numbers = 35 * shape.hidden_size + (8 if shape.is_gated else 5) * shape.feed_forward_size
    assert rows["elements"].time_ns == pytest.approx(256 * 2 * 4 * numbers / 1e10 * 1e9)
    assert rows["logits"].time_ns == pytest.approx(3 * 4 * 256 * 256 / 1e10 * 1e9)
    # More often than the least, at less than the bandwidth; and more bytes a logit than 12
    traffic, reach, logit_bytes = CPU.traffic, CPU.bandwidth_efficiency, CPU.loss_bytes
    more_ns = rows["elements"].time_ns * (traffic / reach - 1)
    more_ns += 256 * 256 * (logit_bytes / reach - 12) / 1e10 * 1e9
    assert rows["traffic"].time_ns == pytest.approx(more_ns)
    assert rows["optimizer"].time_ns == pytest.approx(1 * MS)
    assert rows["optimizer"].bound == "memory"
    assert rows["gaps"].time_ns == pytest.approx(2 * 1e9 * CPU.block_s)
    assert rows["rest"].bound == "unknown"
    slower = rows_of(add_peaks(make_step(factor=5), flops_per_s=1e11, bytes_per_s=1e10))
    assert slower["rest"].name == "not explained"


def test_attention_is_what_instruments_saw_less_the_layers_around_it() -> None:
    seen = rows_of(add_peaks(make_step(), 1e11, 1e10))["attention"]
    assert seen.basis == "measured"
    # Queries, keys, values and output: 4 x 64 x 64 weights, 256 tokens, 3 passes, 2 blocks; and
    # what these matmuls move, 114,688 numbers a block and pass
    around_ns = 2 * 4 * 64**2 * 256 * 3 * 2 / CPU.matmul_efficiency / 1e11 * 1e9
    around_ns += CPU.matmul_traffic * 114_688 * 4 * 6 / CPU.bandwidth_efficiency / 1e10 * 1e9
    assert seen.time_ns == pytest.approx(3 * MS - around_ns)
    blind = add_peaks(make_step(regions={}, instrumented_ns=[]), 1e11, 1e10)
    assert rows_of(blind)["attention"].basis == "predicted"
    regions = {name: Region(calls=2, samples_ns=[1.0] * 20) for name in make_step().regions}
    assert rows_of(add_peaks(make_step(regions=regions), 1e11, 1e10))["attention"].basis == (
        "predicted"  # shorter than its layers alone
    )


def test_what_comes_to_more_than_was_measured_is_faster_than_predicted() -> None:
    rows = rows_of(add_peaks(make_step(factor=0.05), 1e11, 1e10))
    assert rows["rest"].time_ns < 0
    assert rows["rest"].name == "faster than predicted"
    assert rows["rest"].gain_ns == 0


def test_emulated_arithmetic_is_a_loss_to_dtype() -> None:
    layer = make_layer(flops={"forward": {"bfloat16": 2e9}, "backward": {"bfloat16": 4e9}})
    rows = rows_of(with_peaks(layer, float32=6e11, bfloat16=1e11))
    assert rows["matmuls"].time_ns == pytest.approx(10 * MS)
    assert rows["dtype"].time_ns == pytest.approx(50 * MS)
    assert rows["dtype"].gain_ns == rows["dtype"].time_ns
    native = rows_of(with_peaks(layer, float32=1e11, bfloat16=6e11))
    assert "dtype" not in native
    assert native["matmuls"].time_ns == pytest.approx(10 * MS)


def test_kernels_that_beat_the_peak_of_their_dtype_are_held_against_a_wider_one() -> None:
    layer = make_layer(flops={"forward": {"int8": 2e9}, "backward": {"int8": 4e9}})
    breakdown = explain(with_peaks(layer, float32=1e11, int8=1e9))
    assert breakdown.rows[0].time_ns == pytest.approx(60 * MS)
    assert breakdown.remarks[-1] == (
        "matmuls in int8 were faster than any that was measured for its peak, and are held "
        "against the peak in float32"
    )


def test_a_layer_loses_to_its_shape_what_traffic_takes() -> None:
    rows = rows_of(add_peaks(make_layer(), flops_per_s=1e11, bytes_per_s=1e10))
    assert rows["matmuls"].time_ns == pytest.approx(60 * MS)
    # Less than the rate, and some of what three matmuls move, 3 million numbers each
    lost_ns = 60 * MS * (1 / CPU.matmul_efficiency - 1)
    lost_ns += 3 * CPU.matmul_traffic * 3e6 * 4 / CPU.bandwidth_efficiency / 1e10 * 1e9
    assert rows["shape"].time_ns == pytest.approx(lost_ns)
    sparse = make_layer("dyad:auto:4", count=3e9)
    half = rows_of(add_peaks(sparse, 1e11, 1e10))
    assert half["matmuls"].time_ns == pytest.approx(30 * MS)
    assert half["shape"].time_ns < rows["shape"].time_ns


def test_declared_bytes_count_beyond_the_arithmetic_that_they_are_moved_for() -> None:
    record = make_record(
        samples_ns={"call": [1e9] * 20}, flops={"call": {"float32": 5e9}}, bytes={"call": 1e9}
    )
    rows = rows_of(add_peaks(record, flops_per_s=1e11, bytes_per_s=1e10))
    assert [(row.key, row.time_ns) for row in rows.values()] == [
        ("matmuls", pytest.approx(50 * MS)),
        ("memory", pytest.approx(50 * MS)),
        ("rest", pytest.approx(900 * MS)),
    ]


def test_ranks_wait_and_move_data() -> None:
    rows = rows_of(add_peaks(make_job(), 1e11, 1e10))
    assert rows["waiting"].time_ns == pytest.approx(0.5 * MS)
    assert rows["transfer"].time_ns == pytest.approx(2 * MS)
    assert {rows[key].bound for key in ("waiting", "transfer")} == {"network"}


def test_what_is_not_known_of_collectives_is_no_zero() -> None:
    job = make_job()
    unseen = [replace(rank, waiting_ns=[None] * 20, transfer_ns=[None] * 20) for rank in job.ranks]
    record = add_peaks(replace(job, ranks=unseen), 1e11, 1e10)
    assert not {"waiting", "transfer"} & set(rows_of(record))
    assert "how long ranks waited for collectives is not known" in explain(record).remarks[-1]
    assert explain(job).remarks != explain(record).remarks
    (sheet,) = make_rank_sheets(summarize([record]))
    assert [row[-4:] for row in sheet.groups[0]] == [["unknown"] * 4] * 2
    # What is known of a few samples is taken from those.
    some = [replace(rank, waiting_ns=[None, *rank.waiting_ns[1:]]) for rank in job.ranks]
    rows = rows_of(add_peaks(replace(job, ranks=some), 1e11, 1e10))
    assert rows["waiting"].time_ns == pytest.approx(0.5 * MS)


def test_a_gpu_has_nominal_peaks() -> None:
    record = on_gpu("NVIDIA A100-SXM4-80GB", flops={"call": {"bfloat16": 156e12}})
    rows = rows_of(record)
    assert rows["matmuls"].time_ns == pytest.approx(0.5e9)


def test_measured_peaks_come_first() -> None:
    record = on_gpu("NVIDIA A100-SXM4-80GB", flops={"call": {"bfloat16": 100e12}})
    assert rows_of(with_peaks(record, bfloat16=200e12))["matmuls"].time_ns == pytest.approx(0.5e9)


def test_published_jobs_are_counted_by_their_dimensions() -> None:
    record = next(r for r in load("mosaic") if r.params["model"] == "gpt-7b")
    assert not record.flops
    rows = rows_of(record)
    assert {rows[key].basis for key in ("optimizer", "transfer")} == {"predicted"}
    assert rows["matmuls"].basis == "counted"
    assert 0.2 < rows["matmuls"].time_ns / explain(record).total_ns < 0.6


# Without peaks


def test_without_peaks_phases_and_regions_are_told() -> None:
    breakdown = explain(make_step())
    assert {row.key: round(row.time_ns / MS, 6) for row in breakdown.rows} == {
        "optimizer": 1,
        "forward/attention": 1,
        "forward/head": 0.5,
        "forward": 1.5,
        "backward/attention": 2,
        "backward": 4,
    }
    assert {row.gain_ns for row in breakdown.rows} == {None}
    assert breakdown.remarks == [
        "no peak in float32 was known when this was measured: run `flopwatch peaks`, then measure "
        "again, and matmuls have rows"
    ]


def test_without_peaks_a_job_is_told_by_its_ranks() -> None:
    rows = rows_of(make_job())
    assert list(rows) == ["optimizer", "waiting", "transfer", "computing"]
    assert rows["computing"].time_ns == pytest.approx(6.5 * MS)


def test_without_a_bandwidth_matmuls_still_have_rows() -> None:
    breakdown = explain(with_peaks(make_step(), float32=1e11))
    assert [row.key for row in breakdown.rows] == ["matmuls", "optimizer", "rest"]
    assert breakdown.remarks[0].startswith("no bandwidth of memory was known when this")


def test_what_was_not_measured_has_no_breakdown() -> None:
    assert (
        make_breakdown(make_record(status="oom", samples_ns={}, rounds=[], calls_per_sample=[]))
        is None
    )


@pytest.mark.parametrize(
    "job",
    [None, {}, {"model": 3, "seq_len": 32}, {"model": MODEL, "seq_len": 2, "micro_batch": "x"},
     {"model": "nobody", "seq_len": 2}, {"model": MODEL, "seq_len": 2, "optimizer": "magic"}],
)  # fmt: skip
def test_a_step_without_a_job_or_with_a_damaged_one(job: dict[str, object] | None) -> None:
    rows = rows_of(add_peaks(make_step(job=job), 1e11, 1e10))
    assert list(rows) == ["matmuls", "optimizer", "rest"]


# All of them


positive = st.floats(1e-3, 1e12)
samples = st.lists(positive, min_size=3, max_size=3)


@st.composite
def records(draw: st.DrawFn) -> Record:
    phases = draw(st.lists(st.sampled_from(["forward", "backward", "optimizer", "call"]),
                           min_size=1, unique=True))  # fmt: skip
    make = draw(st.sampled_from([make_record, make_layer, make_step, make_job]))
    record = make(
        samples_ns={phase: draw(samples) for phase in phases},
        rounds=[0, 1, 2],
        calls_per_sample=[1, 1, 1],
        regions={},
        instrumented_ns=[],
        ranks=[],
        bytes={phase: draw(positive) for phase in phases if draw(st.booleans())},
        warmup_samples=draw(st.integers(0, 2)),
    )
    count = draw(st.integers(0, 2))
    ranks = [
        Rank(samples_ns=record.samples_ns, waiting_ns=draw(samples), transfer_ns=draw(samples))
        for _ in range(count)
    ]
    record = replace(record, ranks=ranks)
    if draw(st.booleans()):
        record = add_peaks(record, draw(st.floats(1e6, 1e15)), draw(st.floats(1e6, 1e13)))
    return record


@settings(max_examples=300)
@given(records())
def test_rows_add_up_whatever_was_measured(record: Record) -> None:
    breakdown = make_breakdown(record)
    assert breakdown is not None
    times_ns = [row.time_ns for row in breakdown.rows]
    largest_ns = max(map(abs, times_ns))
    if min(map(abs, times_ns)) <= breakdown.total_ns / 2:
        assert math.fsum(times_ns) == breakdown.total_ns
    assert abs(math.fsum(times_ns) - breakdown.total_ns) <= math.ulp(largest_ns)
    # Beside a rest of 10^15 times the whole, rounding takes a nanosecond's part from the shortest.
    assert all(time_ns >= -math.ulp(largest_ns) for time_ns in times_ns[:-1])
    assert all(row.gain_ns is None or row.gain_ns >= 0 for row in breakdown.rows)
    for operation in breakdown.operations:
        assert operation.share > 0


# Roofs


def test_operations_of_a_step() -> None:
    placed = {o.name: o for o in explain(add_peaks(make_step(), 1e11, 1e10)).operations}
    assert set(placed) == {
        "forward", "backward", "optimizer", "forward/attention", "forward/head",
        "backward/attention",
    }  # fmt: skip
    update = placed["optimizer"]
    assert update.intensity == pytest.approx(12 / (7 * 4))
    assert update.bound == "memory"
    assert update.limit_flops_per_s == pytest.approx(1e10 * 12 / 28)
    forward = placed["forward"]
    flops = make_step().flops["forward"]["float32"]
    assert forward.reached_flops_per_s == pytest.approx(flops / 3e-3)
    assert forward.share == pytest.approx(flops / 3e-3 / forward.limit_flops_per_s)


def test_a_layer_has_both_roofs() -> None:
    few = add_peaks(make_layer(), flops_per_s=1e11, bytes_per_s=1e8)
    (forward, _) = explain(few).operations
    assert forward.intensity == pytest.approx(2e9 / 12e6)
    assert forward.bound == "memory"
    many = add_peaks(make_layer(), flops_per_s=1e11, bytes_per_s=1e10)
    assert {o.bound for o in explain(many).operations} == {"compute"}
    assert explain(make_layer()).operations == []


# Two files


def test_rows_that_moved_come_first() -> None:
    old = add_peaks(make_step(), 1e11, 1e10)
    times = {**old.samples_ns, "optimizer": [4 * MS] * 20}
    new = replace(old, samples_ns=times, regions={}, instrumented_ns=[], run_id="s")
    (movement,) = find_moved([replace(old, regions={}, instrumented_ns=[])], [new]).movements
    assert movement.change_ns == pytest.approx(3 * MS)
    assert movement.rows[0].key == "optimizer"
    assert movement.rows[0].change_ns == pytest.approx(3 * MS)
    assert sum(row.change_ns for row in movement.rows) == pytest.approx(movement.change_ns)


def test_peaks_that_were_measured_again_move_nothing() -> None:
    old, new = (add_peaks(make_step(run_id=str(peak)), peak, 1e10) for peak in (1e11, 1.2e11))
    (movement,) = find_moved([old], [new]).movements
    assert {row.change_ns for row in movement.rows} == {0}
    (movement,) = find_moved([old], [make_step(run_id="none")]).movements
    assert movement.new.is_explained
    other = add_peaks(make_step(settings=Settings(threads=7)), 2e11, 1e10)
    (movement,) = find_moved([old], [other]).movements
    matmuls = next(row for row in movement.rows if row.key == "matmuls")
    assert matmuls.old_ns == pytest.approx(2 * (matmuls.new_ns or 0))
    assert movement.differences


def test_sides_of_which_one_has_no_peaks_are_compared_by_phases() -> None:
    old = add_peaks(make_step(), 1e11, 1e10)
    (movement,) = find_moved([old], [make_step(settings=Settings(threads=7))]).movements
    assert {row.key for row in movement.rows} >= {"forward", "backward"}
