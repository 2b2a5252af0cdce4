"""However ranks divide a job, its tokens are counted once, and so are its FLOPs."""

from __future__ import annotations

from typing import Any

import pytest

from flopwatch.analysis.record_job import assess_record
from flopwatch.analysis.summary import summarize
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.flops import FORWARD_BACKWARD
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models.job_estimates import count_flops
from flopwatch.models.training_loop import list_facts
from flopwatch.output.layouts.layout_mosaic import COLUMNS, Entry
from flopwatch.records.record import Record
from tests.conftest import make_record
from tests.plot_tools import add_peaks

RANKS, STEP_NS = 4, 1e8
DENSE = "decoder:hidden_size=64:layers=4:heads=4:vocabulary=256"
MIXTURE = f"{DENSE}:experts=4:active_experts=2"
WAYS = ["none", "ddp", "full", "zero1", "tp2+none", "tp4+sp", "pp2", "pp4:gpipe", "pp2:zbv",
        "tp2+pp2", "full+tp2", "full+cp2"]  # fmt: skip


def make_job(variant: str, model: str = DENSE) -> TrainingJob:
    split = Parallelism(data=RANKS)
    job = TrainingJob(model, 32, micro_batch=2, grad_accum=4, precision="fp32", parallelism=split)
    return parse_variant(job, variant)


def make_measured(variant: str, model: str = DENSE) -> Record:
    """A step of a tenth of a second."""
    job = make_job(variant, model)
    flops = count_flops(job)
    phases = [phase for phase in flops if "/" not in phase]
    record = make_record(
        suite="training",
        variant=variant,
        baseline="none",
        case_id=variant,
        layout="mosaic",
        params={"model": model, "seq_len": 32, "ranks": RANKS, "micro_batch": 2, "grad_accum": 4},
        job=job.to_dict(),
        facts=list_facts(job, job.parameters),
        flops=flops,
        samples_ns={phase: [STEP_NS / len(phases)] * 20 for phase in phases},
    )
    return add_peaks(record, flops_per_s=RANKS * 1e10, bytes_per_s=1e10)


def list_utilisations(record: Record) -> dict[str, Any]:
    (row,) = summarize([record])
    assert row.tokens_per_s is not None
    found = assess_record(record, row.tokens_per_s)
    assert found.devices == RANKS
    return {
        "tokens_per_s": row.tokens_per_s,
        **{one.convention: one.mfu for one in found.utilisations},
    }


@pytest.mark.parametrize("variant", WAYS)
def test_tokens_and_utilisation_are_those_of_the_job(variant: str) -> None:
    job = make_job(variant)
    assert job.ranks == RANKS
    assert job.tokens_per_step == make_job("none").tokens_per_step == 32 * 2 * 4 * RANKS
    found, usual = (list_utilisations(make_measured(each)) for each in (variant, "none"))
    assert found["tokens_per_s"] == pytest.approx(32 * 2 * 4 * RANKS / 0.1)
    assert set(CONVENTIONS) <= set(found)
    for name, value in usual.items():
        assert found[name] == pytest.approx(value), name


def test_experts_that_ranks_divide_are_counted_once() -> None:
    found, usual = (list_utilisations(make_measured(each, MIXTURE)) for each in ("ep2", "none"))
    assert found == pytest.approx(usual)


@pytest.mark.parametrize("variant", ["none", "tp2+none", "pp2", "full+tp2"])
def test_recomputed_work_counts_in_hfu_alone(variant: str) -> None:
    plain, again = (
        assess_record(make_measured(each), 1e4).utilisations
        for each in (variant, f"{variant}+recompute-full")
    )
    for one, other in zip(plain, again, strict=True):
        assert other.mfu == one.mfu
        if one.hfu is not None and other.hfu is not None:
            assert other.hfu > one.hfu


@pytest.mark.parametrize("variant", ["tp2+none", "pp2", "tp2+pp2"])
def test_flops_of_all_ranks_are_those_of_the_model(variant: str) -> None:
    def add_up(flops: dict[str, dict[str, float]]) -> float:
        passes = (FORWARD_BACKWARD, "grad_accum", "forward", "backward")
        return sum(sum(flops[phase].values()) for phase in passes if phase in flops)

    assert add_up(count_flops(make_job(variant))) == add_up(count_flops(make_job("none")))


@pytest.mark.parametrize("variant", ["none", "tp2+none", "pp2", "full+tp2"])
def test_the_published_layout_counts_batch_and_devices_once(variant: str) -> None:
    record = make_measured(variant)
    (row,) = summarize([record])
    entry = Entry(row=row, assessment=assess_record(record, row.tokens_per_s))
    cells = {column.heading: column.find(entry) for column in COLUMNS}
    assert cells["NumGPUs"] == RANKS
    assert cells["GlobalBatchSize (S)"] == 2 * 4 * RANKS
    assert cells["MicroBatchSize (S)"] == 2
    assert entry.divide_speed(RANKS) == pytest.approx(32 * 2 * 4 / 0.1)
