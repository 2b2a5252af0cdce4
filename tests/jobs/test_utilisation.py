"""Utilisation: shares of a peak, also of stored jobs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flopwatch.devices.specifications import Peak
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS, Training
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.utilisation import assess, assess_record, find_product_dtype, find_tokens_per_s
from flopwatch.records.record import Record
from flopwatch.settings import Settings
from tests.conftest import make_record

A100 = Peak(flops_per_s=312e12, source="a data sheet")
SEVEN = Training(shape=find_shape("7b"), tokens=2048)


def test_more_than_the_peak_is_called_impossible() -> None:
    found = assess(SEVEN, 1e6, devices=8, peak=A100)
    assert all(one.mfu is not None and one.mfu > 1 for one in found)
    assert all(one.impossible and "is impossible" in one.impossible for one in found)
    assert all(one.impossible is None for one in assess(SEVEN, 1e4, devices=8, peak=A100))


def test_what_is_far_beyond_the_peak_needs_no_digits() -> None:
    (found,) = assess(SEVEN, 1e12, devices=1, peak=A100, conventions=[CONVENTIONS["exact"]])
    assert found.impossible is not None
    assert found.impossible.startswith("more than 1000 % of the peak by exact is impossible: ")


def test_without_a_peak_it_says_how_to_give_it() -> None:
    found = assess(SEVEN, 25651.12, devices=8, peak=None)
    assert len(found) == len(CONVENTIONS)
    for one in found:
        assert (one.mfu, one.hfu, one.mfu_star, one.impossible) == (None, None, None, None)
        assert one.model_flops_per_token > 0
        assert one.missing is not None
        assert "--peak" in one.missing


def test_tokens_per_second_follow_from_an_mfu() -> None:
    for convention in CONVENTIONS.values():
        speed = find_tokens_per_s(SEVEN, 0.4, devices=8, peak=A100, convention=convention)
        (found,) = assess(SEVEN, speed, devices=8, peak=A100, conventions=[convention])
        assert found.mfu == pytest.approx(0.4)


def make_job(variant: str = "full-shard", **changes: object) -> Record:
    """A step of half a second, of 2 x 4 x 8 texts of 2048 tokens."""
    params = {
        "model": "gpt-125m", "context": 2048, "ranks": 8, "micro_batch": 4, "accumulation": 2,
        "precision": "bf16-mixed", "optimizer": "adamw",
    }  # fmt: skip
    params |= {axis: changes.pop(axis) for axis in params if axis in changes}
    content: dict[str, object] = {
        "case_id": json.dumps([variant, params]),
        "group_id": json.dumps(params),
        "suite": "training",
        "layout": "mosaic",
        "variant": variant,
        "baseline": "plain",
        "params": params,
        "samples_ns": {"step": [5e8] * 20},
        "facts": {
            "tokens": 64 * 2048.0, "sequences": 64.0, "parameters": 125_226_240.0,
            "micro_batch": 4.0, "accumulation": 2.0, "context": 2048.0,
        },
        "settings": Settings(device="cuda"),
        "environment": {"torch": {"gpu": {"name": "NVIDIA A100-SXM4-80GB"}}},
    }  # fmt: skip
    return make_record(**{**content, **changes})


def test_a_record_says_what_it_needs() -> None:
    found = assess_record(make_job("full-shard+checkpointed"), 734298.52)
    assert found.device is not None
    assert (found.training.recompute, found.training.tokens) == ("full", 2048)
    mosaic, *others = found.utilisations
    # Of the published row of these tokens/s, which is not checkpointed; that changes HFU only.
    assert f"{mosaic.mfu:.4f} {mosaic.mfu_star:.4f}" == "0.2433 0.2210"
    assert mosaic.hfu is not None
    assert mosaic.hfu > 0.2433
    assert [one.convention for one in (mosaic, *others)] == list(CONVENTIONS)
    assert assess_record(make_job(), None).utilisations == []


@pytest.mark.parametrize(
    "record",
    [
        make_job("ddp+dyad:auto:4"),
        make_job(model="qwen2:hidden_size=64:layers=2"),
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
        ({"precision": "strange"}, None),
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
        (
            {"precision": "strange"},
            "precision 'strange' is not known here, nor is its peak; give that to flopwatch mfu by "
            "--peak, in TFLOP/s of one device",
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
    assert find_product_dtype(record) == "tf32"
    assert find_product_dtype(replace(record, settings=Settings())) == "float32"


def test_a_record_of_another_suite_is_refused() -> None:
    for params in ({"model": "7b"}, {"model": "7b", "context": "long"}, {"model": 7, "context": 8}):
        with pytest.raises(UsageError, match="its model and its context; only the suite training"):
            assess_record(make_record(variant="ddp", params=params), 1.0)
