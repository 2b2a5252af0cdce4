"""What a record measured, and what share of its device's peak that is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flopwatch.analysis.record_job import assess_record, find_matmul_dtype
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.records.record import Record
from flopwatch.settings import Settings
from tests.conftest import make_record


def make_job(variant: str = "full", **changes: Any) -> Record:
    """A step of half a second, of 2 x 4 x 8 sequences of 2048 tokens."""
    params: dict[str, Any] = {
        "model": "gpt-125m", "seq_len": 2048, "ranks": 8, "micro_batch": 4, "grad_accum": 2,
        "precision": "bf16-mixed", "optimizer": "adamw",
    }  # fmt: skip
    params |= {axis: changes.pop(axis) for axis in params if axis in changes}
    described = {axis: value for axis, value in params.items() if axis != "ranks"}
    job = TrainingJob(**described, parallelism=Parallelism(data=params["ranks"]))
    content: dict[str, object] = {
        "case_id": json.dumps([variant, params]),
        "group_id": json.dumps(params),
        "suite": "training",
        "layout": "mosaic",
        "variant": variant,
        "baseline": "none",
        "params": params,
        "job": parse_variant(job, variant).to_dict(),
        "samples_ns": {"step": [5e8] * 20},
        "facts": {
            "tokens": 64 * 2048.0, "sequences": 64.0, "parameters": 125_226_240.0,
            "micro_batch": 4.0, "grad_accum": 2.0, "seq_len": 2048.0,
        },
        "settings": Settings(device="cuda"),
        "environment": {"torch": {"gpu": {"name": "NVIDIA A100-SXM4-80GB"}}},
    }  # fmt: skip
    return make_record(**{**content, **changes})


def test_a_record_says_what_it_needs() -> None:
    found = assess_record(make_job("full+recompute-full"), 734298.52)
    assert found.device is not None
    assert (found.job.recompute, found.job.seq_len) == ("full", 2048)
    mosaic, *others = found.utilisations
    # Of the published row of these tokens/s, which recomputes nothing; that changes HFU only.
    assert f"{mosaic.mfu:.4f} {mosaic.mfu_star:.4f}" == "0.2433 0.2210"
    assert mosaic.hfu is not None
    assert mosaic.hfu > 0.2433
    assert [one.convention for one in (mosaic, *others)] == list(CONVENTIONS)
    assert assess_record(make_job(), None).utilisations == ()


@pytest.mark.parametrize(
    "record",
    [
        make_job("ddp+dyad:auto:4"),
        make_job(model="stablelm:hidden_size=64:layers=2"),
    ],
)
def test_what_parts_do_not_know_is_counted_by_parameters_only(record: Record) -> None:
    found = assess_record(record, 1000.0).utilisations
    assert [one.convention for one in found] == ["mosaic-2023", "mosaic"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 312e12),
        ({"precision": "fp32"}, 19.5e12),
        ({"precision": "bf16"}, 312e12),
        ({"precision": "amp_bf16"}, 312e12),
        ({"settings": Settings(device="cpu")}, None),
        ({"environment": {"torch": {"gpu": {"name": "Abacus"}}}}, None),
        (
            {
                "precision": "fp32",
                "environment": {
                    "torch": {"gpu": {"name": "NVIDIA A100-SXM4-80GB", "tf32_matmul": True}}
                },
            },
            156e12,
        ),
    ],
)
def test_the_peak_is_that_of_the_device_and_the_dtype(
    changes: dict[str, object], expected: float | None
) -> None:
    found = assess_record(make_job(**changes), 1000.0).utilisations
    assert {one.peak_flops_per_s for one in found} == {expected}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"settings": Settings()},
            "the nominal peak of a CPU is not known; `flopwatch peaks` measures one, and later "
            "records carry it",
        ),
        (
            {"environment": {"torch": {"gpu": {"name": "Tesla T4"}}}},
            "T4 has no nominal peak in bfloat16; `flopwatch peaks` measures one, and later records "
            "carry it",
        ),
        (
            {"environment": {"torch": {"gpu": {"name": "Abacus"}}}},
            "Abacus is not in the table of devices; `flopwatch peaks` measures one, and later "
            "records carry it",
        ),
    ],
)
def test_why_a_record_has_no_peak_is_told(changes: dict[str, object], sentence: str) -> None:
    found = assess_record(make_job(**changes), 1000.0).utilisations
    assert {one.missing for one in found} == {sentence}
    assert {one.mfu for one in found} == {None}


def test_a_cpu_does_not_round_as_the_gpu_beside_it_does() -> None:
    environment = {"torch": {"gpu": {"name": "NVIDIA A100-SXM4-80GB", "tf32_matmul": True}}}
    record = make_job(precision="fp32", environment=environment)
    assert find_matmul_dtype(record) == "tf32"
    assert find_matmul_dtype(replace(record, settings=Settings())) == "float32"


@pytest.mark.parametrize(
    "job", [None, {}, {"model": "7b"}, {"model": "7b", "seq_len": "long"}, {"seq_len": 8}]
)
def test_a_record_without_a_training_job_is_refused(job: dict[str, Any] | None) -> None:
    with pytest.raises(UsageError, match="has no training job with a model and a sequence length"):
        assess_record(make_record(variant="ddp", job=job), 1.0)
