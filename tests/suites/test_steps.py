"""Whole models in every variant: they agree, they are instrumented, and they become records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flopwatch.devices import matmul_rates
from flopwatch.devices.cpu import CpuClock
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.training_job import TrainingJob, parse_variant, read_job
from flopwatch.models.step_workload import make_reference, make_workload
from flopwatch.output.training_tables import find_error
from flopwatch.records.record import Record
from flopwatch.runner import session
from flopwatch.suites.builtin.steps import LONGEST_CHECKED, accept, reference, suite
from flopwatch.suites.case import Case
from flopwatch.worker.agreement import compare, gather
from flopwatch.worker.instruments import ClockStopwatch
from flopwatch.worker.sampling import run_phases
from tests.runner.test_session import QUICK, SilentWatcher

TINY = "decoder:hidden_size=64:layers=2:heads=4:vocabulary=256"
JOB = TrainingJob(TINY, 16, micro_batch=2, precision="fp32")
VARIANTS = [
    "eager",
    "plain-attention",
    "recompute-full",
    "recompute-full+plain-attention",
    "recompute-selective",
    "recompute-selective+dyad:auto:4",
    "dyad:auto:4",
    "dyad:auto:4@linear",
    "switchback:rowwise@blocks.1.*",
]


@pytest.fixture(autouse=True)
def same_seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("text", VARIANTS)
def test_every_variant_agrees_with_plain_formulas(text: str) -> None:
    job = parse_variant(JOB, text)
    values = gather(make_workload(job, "cpu"), CpuClock()).values
    expected = gather(make_reference(job, "cpu"), CpuClock()).values
    tolerance = suite.tolerance(make_case(variant=text))
    assert compare(values, expected, against="the reference", tolerance=tolerance) is not None
    assert len(values) > 5  # the loss and all norms


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-unfused", "sgd"])
def test_every_step_of_every_optimizer_computes_the_same(optimizer: str) -> None:
    workload = make_workload(replace(JOB, optimizer=optimizer), "cpu")
    first, second = (gather(workload, CpuClock()).values["output"] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("slowdown", "is_told"), [(100.0, True), (0.5, False)])
def test_a_short_type_that_is_emulated_is_said_to_be(
    slowdown: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_ns = {"float32": [1e6, 2e6], "bfloat16": [slowdown * 1e6, slowdown * 9e6]}
    monkeypatch.setattr(matmul_rates, "time_matmuls", lambda dtype, device, clock: times_ns[dtype])
    matmul_rates.describe_emulation.cache_clear()
    notes = make_workload(replace(JOB, precision="bf16"), "cpu").notes
    matmul_rates.describe_emulation.cache_clear()
    told = "bfloat16 is emulated here: a plain matmul takes 100 times as long as in float32"
    assert list(notes) == ([told] if is_told else [])


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed", "bf16"])
def test_short_types_agree(precision: str) -> None:
    job = replace(JOB, precision=precision)
    workload = make_workload(job, "cpu")
    case = make_case(precision=precision)
    expected = gather(make_reference(job, "cpu"), CpuClock()).values
    values = gather(workload, CpuClock()).values
    assert compare(values, expected, against="it", tolerance=suite.tolerance(case)) is not None
    assert workload.conditions["autocast"] != "off" or workload.conditions["dtype"] == "bfloat16"


def test_the_layers_of_one_variant_are_not_left_for_the_next() -> None:
    eager, dyad = (
        make_workload(parse_variant(JOB, text), "cpu") for text in ("eager", "dyad:auto:4")
    )
    reset = (eager.reset, dyad.reset)
    losses = []
    for prepare, workload in [*zip(reset, (eager, dyad), strict=True)] * 2:
        assert prepare is not None
        prepare()
        losses.append(workload.phases["forward"]().item())
    assert losses[0] == losses[2] != losses[1]
    assert losses[1] == losses[3]


def test_regions_are_timed_inside() -> None:
    workload = make_workload(JOB, "cpu")
    stopwatch = ClockStopwatch(CpuClock())
    assert workload.instrument is not None
    with workload.instrument(stopwatch):
        run_phases(workload)
    readings = stopwatch.read(1, workload.phases)
    assert {name: reading.calls for name, reading in readings.items()} == {
        f"{phase}/{part}": 1 if part == "head" else 2
        for phase in ("forward", "backward")
        for part in ("attention", "feed-forward", "head")
    }
    assert set(readings) <= set(suite.count_flops(make_case()))


def test_facts_say_what_was_built() -> None:
    facts = make_workload(JOB, "cpu").list_facts()
    assert (facts["tokens"], facts["layers"], facts["hidden_size"]) == (32, 2, 64)


@pytest.mark.parametrize("model", ["opt-125m", "qwen2", "gpt2"])
def test_models_of_transformers_take_part(model: str) -> None:
    sizes = "hidden_size=64:layers=2:heads=4:vocabulary=256:feed_forward_size=128:positions=32"
    job = replace(JOB, model=f"{model}:{sizes}")
    for text in ("eager", "recompute-full", "recompute-selective"):
        values = gather(make_workload(parse_variant(job, text), "cpu"), CpuClock()).values
        expected = gather(make_reference(job, "cpu"), CpuClock()).values
        assert compare(values, expected, against="it", tolerance=3e-3) is not None


def test_layers_of_an_unknown_architecture_must_be_named_by_a_pattern() -> None:
    job = replace(JOB, model="stablelm:hidden_size=64:layers=1:heads=4:vocabulary=256")
    with pytest.raises(Unsupported, match="which layers of stablelm are feed-forward is not known"):
        make_workload(parse_variant(job, "dyad:auto:4"), "cpu")
    made = make_workload(parse_variant(job, "dyad:auto:4@*.mlp.*"), "cpu")
    assert made.phases
    assert made.instrument is None  # its parts are not known by name


def test_layers_that_cannot_be_made_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="divide"):
        make_workload(parse_variant(JOB, "dyad:it:7"), "cpu")


def test_of_long_sequences_the_baseline_is_the_reference() -> None:
    assert reference(make_case(seq_len=LONGEST_CHECKED + 1)) is None


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        ("model", "tiny", "there is no model"),
        ("variant", "fast", "is none of"),
        ("variant", "compiled+ddp", "'ddp' is how ranks share a model, which only the suite"),
        ("variant", "eager+", "'' is none of eager, compiled"),
        ("micro_batch", 0, "micro_batch"),
        ("seq_len", 1, "a sequence needs 2 tokens"),
        ("model", "foo:hidden_size=64:layers=2", "there is no architecture 'foo'"),
        ("model", "bart:hidden_size=64:layers=2", "'bart' has an encoder too"),
        ("precision", "fp8", "precision fp8 can be predicted, but models are not built in it"),
    ],
)
def test_bad_values_get_one_sentence(axis: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        accept(axis, value)


def make_case(**changes: object) -> Case:
    params = {
        "model": TINY,
        "micro_batch": 2,
        "seq_len": 16,
        "precision": "fp32",
        "optimizer": "adamw",
    }
    variant = str(changes.pop("variant", "eager"))
    return Case(suite="steps", variant=variant, params={**params, **changes})


def run_steps(folder: Path, *chosen: str) -> list[Record]:
    options = session.Options(
        suite="steps",
        settings=QUICK,
        chosen=[f"model={TINY}", *chosen],
        out=folder / "out.jsonl",
    )
    return list(session.run(options, SilentWatcher()).measured)


def test_a_run_gives_complete_records(tmp_path: Path) -> None:
    variants = ["eager", "plain-attention", "recompute-full", "dyad:auto:4"]
    measured = run_steps(tmp_path, "micro_batch=2", "seq_len=16", f"variant={','.join(variants)}")
    records = {record.variant: record for record in measured}
    assert list(records) == variants
    for record in records.values():
        assert record.status == "ok", record.message
        assert list(record.samples_ns) == ["forward", "backward", "optimizer"]
        assert record.check is not None
        assert record.memory["forward"].end_bytes > 0
        assert record.flops["forward"]
        assert read_job(record.job or {}).micro_batch == 2
        is_predicted = bool(record.predicted_memory_bytes)
        assert is_predicted == (record.variant != "dyad:auto:4")
    assert records["dyad:auto:4"].flops["forward/head"]
    assert records["eager"].regions["forward/attention"].calls == 2
    assert records["recompute-full"].regions == {}
    assert records["recompute-full"].flops["backward"] != records["eager"].flops["backward"]


def test_what_is_predicted_is_what_is_measured(tmp_path: Path) -> None:
    measured = run_steps(tmp_path, "micro_batch=4", "seq_len=64", "variant=eager")
    (record,) = measured
    error = find_error(record)
    assert error is not None
    assert abs(error) < 0.02


@pytest.mark.slow
def test_a_compiled_model_says_how_long_that_took(tmp_path: Path) -> None:
    measured = run_steps(tmp_path, "micro_batch=2", "seq_len=16", "variant=eager,compiled")
    eager, compiled = measured
    assert compiled.status == "ok", compiled.message
    assert compiled.facts["compile_s"] > 0
    assert compiled.facts["graphs"] == 1
    assert "compile_s" not in eager.facts
    first_s = sum(times[0] for times in compiled.samples_ns.values()) / 1e9
    assert first_s > compiled.facts["compile_s"] * 0.9
