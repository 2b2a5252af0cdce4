"""The suite training: what it accepts and refuses, what it counts, and records of real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flopwatch.analysis.record_job import read_training_job
from flopwatch.devices.cpu import CpuBackend
from flopwatch.errors import Unsupported, UsageError
from flopwatch.records.record import Record
from flopwatch.runner import session
from flopwatch.suites.builtin import training as suite_file
from flopwatch.suites.builtin.steps import suite as steps
from flopwatch.suites.builtin.training import (
    PUBLISHED,
    accept,
    build,
    list_micro_batches,
    make_variant,
    reference,
    refuse,
    suite,
)
from flopwatch.suites.case import Case
from flopwatch.suites.grids import AUTO
from tests.runner.test_session import QUICK, SilentWatcher

TINY = "gpt:hidden_size=32:layers=2:heads=4:vocabulary=101:positions=16"
PARAMS: dict[str, Any] = {
    "model": TINY,
    "seq_len": 16,
    "ranks": 2,
    "micro_batch": 4,
    "grad_accum": 1,
    "precision": "fp32",
    "optimizer": "adamw",
}


def make_case(variant: str = "none", **changes: Any) -> Case:
    params = {**PARAMS, **changes}
    if "global_batch" in params:
        del params["grad_accum"]
    return Case(suite="training", variant=variant, params=params)


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        ("model", "tiny", "there is no model"),
        ("variant", "compiled", "does not say how ranks share the model; add one of none, ddp"),
        (
            "variant",
            "zero-shard",
            "is none of none, ddp, zero1, zero2, full, hybrid, eager",
        ),
        ("variant", "full-shard", "'full-shard' is called 'full' here"),
        ("ranks", 0, "ranks is 0"),
        ("grad_accum", 0, "grad_accum is 0"),
        ("micro_batch", 0, "micro_batch is 0"),
        ("global_batch", -8, "global_batch is -8"),
        ("seq_len", 1, "a sequence needs 2 tokens"),
        ("precision", "fp16-mixed", "choose one of fp32, tf32, bf16-mixed, amp_bf16, bf16"),
        ("optimizer", "lion", "choose one of adamw"),
    ],
)
def test_bad_values_get_one_sentence(axis: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        accept(axis, value)


def test_good_values_pass() -> None:
    good = {"micro_batch": AUTO, "ranks": 16, "precision": "amp_bf16", "global_batch": 64}
    for axis, value in good.items():
        accept(axis, value)


@pytest.mark.parametrize(
    ("batch", "micro_batch", "multiple"), [(12, 4, 8), (7, AUTO, 2), (4, 4, 8)]
)
def test_a_batch_that_ranks_cannot_share_is_refused(
    batch: int, micro_batch: Any, multiple: int
) -> None:
    with pytest.raises(UsageError, match=f"choose a multiple of {multiple}, or a micro_batch"):
        refuse(make_case(global_batch=batch, micro_batch=micro_batch))


def test_it_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    words = "global_batch=12 is not a multiple of 2 data-parallel ranks times"
    with pytest.raises(UsageError, match=words):
        run(tmp_path, "global_batch=12", "micro_batch=4", "ranks=2")


def test_a_global_batch_gives_the_gradient_accumulation() -> None:
    case = make_case(global_batch=64)
    refuse(case)
    assert make_variant(case).grad_accum == 8
    assert make_variant(case).global_batch == 64


def test_another_name_of_a_precision_is_that_precision() -> None:
    assert make_variant(make_case(precision="amp_bf16")).precision == "bf16-mixed"


def test_micro_batches_to_choose_from() -> None:
    assert list_micro_batches(make_case(micro_batch=AUTO))[:4] == [1, 2, 3, 4]
    shared = list_micro_batches(make_case(micro_batch=AUTO, global_batch=24))
    assert shared == [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_hybrid_shards_of_few_ranks_are_unsupported(ranks: int) -> None:
    with pytest.raises(Unsupported, match=f"and {ranks} ranks are not such groups"):
        build(make_case("hybrid", ranks=ranks))


@pytest.mark.parametrize("grad_accum", [1, 4])
@pytest.mark.parametrize("again", ["", "+recompute-full", "+recompute-selective"])
def test_flops_are_those_of_all_ranks(again: str, grad_accum: int) -> None:
    """As many as one process has for all sequences of the step at once."""
    found = suite.count_flops(make_case(f"ddp{again}", grad_accum=grad_accum))
    variant = again[1:] or "eager"
    params = {"model": TINY, "micro_batch": 8 * grad_accum, "seq_len": 16}
    params |= {"precision": "fp32", "optimizer": "adamw"}
    alone = steps.count_flops(Case(suite="steps", variant=variant, params=params))
    total = {
        phase: sum(found.get(phase, {}).values())
        for phase in ("grad_accum", "forward", "backward", "optimizer")
    }
    matmuls = total["grad_accum"] + total["forward"] + total["backward"]
    expected = sum(alone["forward"].values()) + sum(alone["backward"].values())
    assert matmuls == pytest.approx(expected)
    assert total["forward"] * grad_accum == pytest.approx(sum(alone["forward"].values()))
    assert total["optimizer"] == 2 * sum(alone["optimizer"].values())  # each has all parameters


def test_shards_share_the_optimizer() -> None:
    plain, shards, hybrid = (
        suite.count_flops(make_case(way, ranks=4))["optimizer"]["float32"]
        for way in ("none", "full", "hybrid")
    )
    assert plain == 2 * hybrid == 4 * shards


@pytest.mark.parametrize("variant", ["tp2", "pp2", "tp2+sp", "pp2:gpipe+recompute-full"])
def test_a_divided_model_computes_as_much(variant: str) -> None:
    """The same sequences, whoever computes which part; a pipeline's passes are one phase."""
    base = "none+recompute-full" if "recompute" in variant else "none"
    plain, divided = (suite.count_flops(make_case(words)) for words in (base, variant))
    passes = ("grad_accum", "forward", "backward", "forward-backward")
    count = {
        id(found): sum(sum(found.get(phase, {}).values()) for phase in passes)
        for found in (plain, divided)
    }
    assert count[id(divided)] == pytest.approx(count[id(plain)])
    assert sum(plain["optimizer"].values()) == 2 * sum(divided["optimizer"].values())
    is_piped = variant.startswith("pp")
    assert {*divided} & {*passes} == (
        {"forward-backward"} if is_piped else {"grad_accum", "forward", "backward"}
    )


def test_axes_divide_models_too() -> None:
    chosen = {"tp": [1, 2], "pp": [2], "ranks": [4], "schedule": ["zbv"], "variant": ["full"]}
    found = {case.tp: make_variant(case) for case in suite.expand(quick=True, chosen=chosen)}
    assert [(job.parallelism.data, job.parallelism.tensor) for job in found.values()] == [
        (2, 1),
        (1, 2),
    ]
    for job in found.values():
        assert (job.parallelism.pipeline, job.parallelism.schedule) == (2, "zbv")
        assert (job.parallelism.virtual_stages, job.sharding) == (2, "full")
        assert job.micro_batches == 4
    assert "tp" not in suite.expand(quick=True)[0].params  # as records of before have it


@pytest.mark.parametrize(
    ("variant", "changes", "words"),
    [
        ("tp3", {}, "tp3: tp=3 takes a multiple of 3 ranks, and there are 2"),
        ("pp2:zbv", {}, "pp2:zbv: .* has 2 layers, and 4 stages"),
        ("none", {"tp": 2, "ranks": 3}, "tp=2 takes a multiple of 2 ranks, and there are 3"),
        ("pp2", {"global_batch": 4}, "pp2: .* needs at least 2 micro-batches .*, and there are 1"),
    ],
)
def test_divisions_that_cannot_be_are_refused(
    variant: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        refuse(make_case(variant, **changes))


def test_nothing_is_predicted_of_a_micro_batch_that_is_not_known() -> None:
    case = make_case(micro_batch=AUTO)
    assert suite.count_flops(case) == {}
    assert suite.estimate_memory(case) == {}


def test_where_a_whole_model_does_not_fit_the_baseline_is_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reference(make_case("full")) is not None
    monkeypatch.setattr(CpuBackend, "count_free_bytes", lambda backend: 1000)
    assert reference(make_case("full")) is None


def test_the_published_grid_has_the_published_batches() -> None:
    """2048 sequences a step, all of them."""
    cases = suite.expand(preset="mosaic")
    assert {case.model for case in cases} == set(PUBLISHED)
    for case in cases:
        assert make_variant(case).global_batch == 2048
        assert case.variant == "none" or case.variant == PUBLISHED[case.model][2]


def test_every_own_case_can_be_divided() -> None:
    for case in [*suite.expand(), *suite.expand(quick=True), *suite.expand(preset="mosaic")]:
        suite_file.refuse(case)


def run(folder: Path, *chosen: str, baseline: str | None = None) -> list[Record]:
    options = session.Options(
        suite="training",
        settings=QUICK,
        chosen=[f"model={TINY}", "seq_len=16", *chosen],
        baseline=baseline,
        out=folder / "out.jsonl",
        force=True,  # one core must do
    )
    return list(session.run(options, SilentWatcher()).measured)


def test_a_job_gives_complete_records(tmp_path: Path) -> None:
    measured = run(tmp_path, "ranks=2", "grad_accum=2", "micro_batch=2")
    records = {record.variant: record for record in measured}
    assert list(records) == ["none", "ddp", "full"]
    paths = []
    for record in records.values():
        assert record.status == "ok", record.message
        assert list(record.samples_ns) == ["grad_accum", "forward", "backward", "optimizer"]
        assert record.check is not None
        assert "loss" in record.check.errors
        assert record.facts["global_batch"] == 8
        assert record.predicted_memory_bytes["parameters"] > 0
        assert len(record.ranks) == 2
        paths.append(record.curves["loss"][:5])
    assert torch.tensor(paths[1:]).allclose(torch.tensor(paths[0]), rtol=1e-5)
    assert records["full"].facts["parameters"] == records["none"].facts["parameters"]


def test_divided_models_give_complete_records(tmp_path: Path) -> None:
    measured = run(tmp_path, "ranks=2", "micro_batch=1", "grad_accum=1", "variant=tp2+sp,pp2,cp2")
    records = {record.variant: record for record in measured}
    assert records["cp2"].status == "unsupported"
    assert "no attention for a CPU" in str(records["cp2"].message)
    phases = {"tp2+sp": ["grad_accum", "forward", "backward", "optimizer"],
              "pp2": ["forward-backward", "optimizer"]}  # fmt: skip
    for variant, names in phases.items():
        record = records[variant]
        assert record.status == "ok", record.message
        assert list(record.samples_ns) == names
        assert {name for name in record.flops if "/" not in name} == set(names)
        assert record.facts["tokens"] == 2 * 16  # once, however many ranks compute them
        assert record.facts["parameters"] == records["none"].facts["parameters"]
        assert record.predicted_memory_bytes["parameters"] > 0
        job = read_training_job(record)
        assert job is not None
        assert (job.ranks, job.parallelism.data, job.grad_accum) == (2, 1, 2)
        assert record.curves["loss"][:5] == pytest.approx(
            records["none"].curves["loss"][:5], rel=1e-5
        )
        assert all(rank.waiting_ns and rank.transfer_ns for rank in record.ranks)


def test_sharded_accumulated_and_recomputed_it_trains_as_one_process_does(tmp_path: Path) -> None:
    variant = "full+recompute-full"
    (sharded,) = run(
        tmp_path,
        *("ranks=2", "micro_batch=1", "grad_accum=4", f"variant={variant}"),
        baseline=variant,
    )
    (alone,) = run(
        tmp_path, "ranks=1", "micro_batch=8", "grad_accum=1", "variant=none", baseline="none"
    )
    assert (sharded.status, alone.status) == ("ok", "ok"), (sharded.message, alone.message)
    assert len(sharded.ranks) == 2
    steps = min(len(sharded.curves["loss"]), len(alone.curves["loss"]))
    assert steps > 5
    ours, plain = (torch.tensor(record.curves["loss"][:steps]) for record in (sharded, alone))
    assert ours.allclose(plain, rtol=1e-5)
    assert len(set(plain.tolist())) == steps  # it really moved
