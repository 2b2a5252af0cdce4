"""This machine calibrated by its own records, what is predicted of cases, and how that is
scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flopwatch.cli.main import cli
from flopwatch.devices.measured_peaks import (
    BUS_PASSES,
    Curve,
    Exchange,
    Matmul,
    Peaks,
    Setup,
    Stream,
    shorten,
)
from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob, parse_variant, read_job
from flopwatch.prediction import calibration as calibrations
from flopwatch.prediction.calibration import (
    CPU_PRIORS,
    PEAKS_SPREAD,
    calibrate,
    find_calibration,
    is_predictable,
    make_stack,
    observe,
    predict_case,
    predict_group,
    read_machine,
)
from flopwatch.prediction.fit import SCATTER, predict_s
from flopwatch.prediction.hardware import count_ring_steps, describe_measured, find_machine
from flopwatch.prediction.job_lists import find_hardware
from flopwatch.prediction.scorecard import judge, judge_all, tally
from flopwatch.prediction.software_stacks import Parameters
from flopwatch.records.record import Record, encode
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings

SETTINGS = Settings(device="cpu", threads=2)
SETUP = Setup(
    device="cpu", threads=2, machine_id="m", cpu_model="CPU", cpu_capability="AVX2",
    onednn_max_cpu_isa=None, gpu_name=None, torch_version="2.13.0",
)  # fmt: skip
PEAKS = Peaks(
    setup=SETUP,
    measured_at="2026-11-17T00:00:00+00:00",
    quick=False,
    matmuls=[
        Curve(
            dtype="float32",
            measured_at="2026-11-17T00:00:00+00:00",
            points=[
                Matmul(rows=512, inner=512, columns=512, flops_per_s=2e11, blocks=9, repeats=9)
            ],
        )
    ],
    streams=[Stream(kernel="triad", size_bytes=2**30, bytes_per_s=2e10)],
    cache_bytes=2**25,
    exchanges=[
        Exchange(operation="all-gather", ranks=2, backend="gloo", size_bytes=2**24, time_ns=5e6)
    ],
)
ENVIRONMENT: dict[str, Any] = {
    "machine": {"machine_id": "m", "cpu_model": "CPU", "memory_total_bytes": 2**35},
    "torch": {"version": "2.13.0", "cpu_capability": "AVX2"},
    "peaks": shorten(PEAKS),
}
TRUE = Parameters(
    **{
        **{name: prior.expected for name, prior in CPU_PRIORS.items()},
        "matmul_efficiency": 0.8,
        "traffic": 2.0,
        "attention_efficiency": 0.25,
    }
)


def make_record(model: str, seq_len: int = 128, **changes: Any) -> Record:
    """A step that takes what TRUE says."""
    params = {"model": model, "micro_batch": 4, "seq_len": seq_len, "precision": "fp32",
              "optimizer": "adamw"}  # fmt: skip
    blank = Record(
        case_id=f"{model}-{seq_len}", job=TrainingJob(**params).to_dict(), group_id=model,
        run_id="r", suite="steps", variant="eager",
        baseline="eager", params=params, status="ok", settings=SETTINGS, environment=ENVIRONMENT,
        measured_at="2026-11-17T10:00:00+00:00", rounds=[0, 1, 2], calls_per_sample=[1, 1, 1],
        samples_ns={phase: [1e9] * 3 for phase in ("forward", "backward", "optimizer")},
    )  # fmt: skip
    times = {each.phases[0]: 1e9 * predict_s(each, TRUE) for each in observe(blank)}
    return replace(blank, samples_ns={phase: [t] * 3 for phase, t in times.items()}, **changes)


RECORDS = [make_record(model, seq_len) for model in ("small", "medium", "gpt-125m")
           for seq_len in (128, 512)]  # fmt: skip


def test_a_calibration_finds_this_machine_and_predicts_what_it_has_not_seen() -> None:
    calibration, fit = calibrate(RECORDS)
    assert (calibration.rows, calibration.setup) == (6, SETUP)
    assert calibration.parameters.matmul_efficiency == pytest.approx(0.8, rel=0.05)
    settled = {found.unknown.name: found.determined for found in fit.found}
    assert settled["matmul_efficiency"] > 0.5 > settled["network_efficiency"]
    unseen = make_record("large")
    for each in observe(unseen):
        assert predict_s(each, calibration.parameters) == pytest.approx(each.time_s, rel=0.05)


def test_how_sure_a_calibration_is_follows_from_models_that_it_has_not_seen() -> None:
    """One model says nothing of others, however well it fits."""
    lone, few = calibrate(RECORDS[:2])[0], calibrate(RECORDS)[0]
    assert lone.scatter == pytest.approx(PEAKS_SPREAD)
    assert SCATTER < few.scatter < lone.scatter
    slower = [replace(r, samples_ns={p: [2 * t for t in ts] for p, ts in r.samples_ns.items()})
              if r.params["model"] == "medium" else r for r in RECORDS]  # fmt: skip
    assert calibrate(slower)[0].scatter > 0.2


def test_what_was_found_to_fit_and_what_gpus_round_counts() -> None:
    job = TrainingJob("gpt-125m", 128, micro_batch=6, grad_accum=2, precision="fp32")
    found = replace(
        RECORDS[0], suite="training", variant="none", params={"micro_batch": "auto"},
        job=job.to_dict(), samples_ns={"step": [1e9] * 3},
    )  # fmt: skip
    (observation,) = observe(found)
    assert observation.job == job
    assert not observe(replace(found, job=None))  # nobody knows how large it was
    rounding = {**ENVIRONMENT, "torch": {"gpu": {"tf32_matmul": True}}}
    on_gpu = replace(found, environment=rounding, settings=replace(SETTINGS, device="cuda"))
    assert [each.job.precision for each in observe(on_gpu)] == ["tf32"]


def test_a_precision_that_it_has_not_seen_is_said() -> None:
    calibration = calibrate(RECORDS)[0]
    assert calibration.precisions == ("fp32",)
    assert make_stack(calibration, "cpu").precisions == ("fp32",)
    assert "bf16" in make_stack(None, "cpu").precisions


def test_a_gpu_that_was_measured_has_its_own_memory_and_attention() -> None:
    setup = replace(SETUP, device="cuda", gpu_name="NVIDIA H100 80GB HBM3")
    machine = describe_measured(replace(PEAKS, setup=setup), 500e9)
    nominal = find_machine("H100-SXM")[1]
    assert machine is not None
    assert machine.device == nominal.device == "cuda"
    assert machine.memory_bytes == nominal.memory_bytes
    assert machine.attention_share == nominal.attention_share


def test_a_calibration_is_kept_and_counts_for_its_own_setup(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "calibrations.jsonl"
    calibration, _ = calibrate(RECORDS[:1])
    assert find_calibration(SETUP, path) is None
    calibrations.append(path, calibration)
    with path.open("ab") as file:
        file.write(b'{"schema": 1}\nnot json\n\xff\n')
    assert find_calibration(SETUP, path) == calibration
    assert find_calibration(replace(SETUP, threads=1), path) is None


def test_records_of_a_device_count_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWATCH_CALIBRATION", str(tmp_path / "calibrations.jsonl"))
    _, machine, stack = find_hardware("64xA100-80GB", None, None)
    assert (stack.name, stack.is_here) == ("llm-foundry-2023-late", False)
    setup = replace(SETUP, device="cuda", gpu_name="NVIDIA A100-SXM4-80GB")
    calibrations.append(calibrations.find_file(), replace(calibrate(RECORDS)[0], setup=setup))
    assert find_hardware("64xA100-80GB", None, None)[2].name == "flopwatch, calibrated"
    assert find_hardware("64xA100-80GB", "mosaicgpt-2022", None)[2].name == "mosaicgpt-2022"
    assert find_hardware("8xA100-40GB", None, None)[2].name == "llm-foundry-2023"
    assert machine.name == "A100-SXM-80GB"


def test_what_cannot_be_calibrated_by_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to calibrate by"):
        calibrate([replace(RECORDS[0], status="oom")])
    other = {**ENVIRONMENT, "torch": {"version": "2.0"}}
    with pytest.raises(UsageError, match="from 2 setups"):
        calibrate([RECORDS[0], replace(RECORDS[1], environment=other)])


def test_a_cost_follows_from_dimensions_where_nothing_else_is_computed() -> None:
    job = TrainingJob("small", 128)
    assert is_predictable(parse_variant(job, "recompute-full"))
    for variant in ("compiled", "plain-attention", "dyad:auto:4"):
        assert not is_predictable(parse_variant(job, variant))
    assert not is_predictable(replace(job, model="stablelm:hidden_size=64:layers=2"))


@pytest.mark.parametrize("value", [0, -1, "auto", None, 1.5, 2**70, [], {}])
@pytest.mark.parametrize("field", ["seq_len", "micro_batch", "model", "precision", "optimizer"])
def test_a_damaged_record_is_no_job(field: str, value: Any) -> None:
    assert RECORDS[0].job is not None
    record = replace(RECORDS[0], job={**RECORDS[0].job, field: value})
    assert observe(record) == []


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e308, 1e-300])
def test_damaged_peaks_describe_no_machine(rate: float) -> None:
    stream = replace(PEAKS.streams[0], bytes_per_s=rate)
    environment = {**ENVIRONMENT, "peaks": shorten(replace(PEAKS, streams=[stream]))}
    assert observe(replace(RECORDS[0], environment=environment)) == []


TWO = TrainingJob(
    "small", 64, micro_batch=2, precision="fp32", parallelism=Parallelism(data=2, sharding="ddp")
)


def test_ranks_that_cannot_be_divided_have_no_prediction() -> None:
    machine = read_machine(RECORDS[0])
    assert machine is not None
    stack = make_stack(None, "cpu")
    assert predict_case(parse_variant(TWO, "hybrid"), machine, stack) is None
    assert predict_case(parse_variant(TWO, "full"), machine, stack) is not None


def test_ranks_on_a_cpu_share_its_cores() -> None:
    record = replace(RECORDS[0], job=TWO.to_dict(), samples_ns={"step": [1e9] * 3})
    (seen,) = observe(record)
    assert seen.machine.peak_flops_per_s["float32"] == 1e11
    assert seen.time_s == 1.0
    assert read_machine(replace(record, environment={})) is None


def test_predictions_are_from_peaks_until_the_machine_is_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWATCH_CALIBRATION", str(tmp_path / "calibrations.jsonl"))
    job = read_job(RECORDS[0].job or {})
    jobs = {variant: parse_variant(job, variant).to_dict() for variant in ("eager", "compiled")}
    group = Group(suite="steps", baseline="eager", params=RECORDS[0].params, variants=tuple(jobs),
                  jobs=jobs)  # fmt: skip
    (from_peaks,) = predict_group(group, ENVIRONMENT, SETTINGS).values()
    assert from_peaks["source"] == "expected of our own transformer"
    calibrations.append(calibrations.find_file(), calibrate(RECORDS)[0])
    (variant, found), *others = predict_group(group, ENVIRONMENT, SETTINGS).items()
    assert (variant, others) == ("eager", [])
    assert found["low_s"] < found["step_s"] < found["high_s"]
    assert found["source"].startswith("records of this machine")
    assert found["step_s"] != from_peaks["step_s"]
    assert sum(found["phases_s"].values()) == pytest.approx(found["step_s"])
    assert predict_group(group, {**ENVIRONMENT, "peaks": None}, SETTINGS) == {}


@pytest.mark.parametrize(
    ("variant", "grad_accum", "phases"),
    [
        ("ddp", 1, ["forward", "backward", "optimizer"]),
        ("ddp", 4, ["grad_accum", "forward", "backward", "optimizer"]),
        ("pp2", 4, ["forward-backward", "optimizer"]),
    ],
)
def test_predicted_phases_are_those_of_our_own_steps(
    variant: str, grad_accum: int, phases: list[str]
) -> None:
    machine = read_machine(RECORDS[0])
    assert machine is not None
    job = parse_variant(replace(TWO, grad_accum=grad_accum), variant)
    found = predict_case(job, machine, make_stack(None, "cpu"))
    assert found is not None
    assert list(found["phases_s"]) == phases
    assert sum(found["phases_s"].values()) == pytest.approx(found["step_s"])


def measure_links(ranks: int, factor: float = 1.0) -> list[Exchange]:
    """A step of a ring takes 1 ms, and 1 GB/s pass a link; so many times slower."""
    found = []
    for operation in BUS_PASSES:
        one = Exchange(operation=operation, ranks=ranks, backend="gloo", size_bytes=1, time_ns=1.0)
        moved_ns = 2**26 * one.bus_bytes_per_s / 1e9
        short_ns = 1e6 * count_ring_steps(operation, ranks)
        for size_bytes, time_ns in ((2**12, short_ns), (2**26, moved_ns)):
            found.append(replace(one, size_bytes=size_bytes, time_ns=factor * time_ns))
    return found


@pytest.mark.parametrize("variant", ["tp2", "tp2+sp", "pp2", "full", "ddp"])
def test_slow_links_of_this_machine_make_its_jobs_slower(variant: str) -> None:
    machines = []
    for factor in (1.0, 10.0):
        peaks = replace(PEAKS, exchanges=measure_links(2, factor))
        machine = read_machine(
            replace(RECORDS[0], environment={**ENVIRONMENT, "peaks": shorten(peaks)})
        )
        assert machine is not None
        machines.append(machine)
    job = parse_variant(replace(TWO, grad_accum=4), variant)
    fast, slow = (predict_case(job, machine, make_stack(None, "cpu")) for machine in machines)
    assert fast is not None
    assert slow is not None
    assert slow["step_s"] > fast["step_s"]


def test_an_exchange_is_predicted_from_as_many_ranks_as_there_are() -> None:
    peaks = replace(PEAKS, exchanges=[*measure_links(2), *measure_links(4, 3.0)])
    machine = describe_measured(peaks, 2.0**35)
    assert machine is not None
    pair_s, _ = machine.find_exchange("all-reduce", 2, 2)
    assert pair_s == pytest.approx(2e-3, rel=1e-3)  # two steps
    # Two of four ranks: as many steps, each as long as with all four at work.
    assert machine.find_exchange("all-reduce", 2, 4)[0] == pytest.approx(6e-3, rel=1e-3)
    assert machine.find_exchange("all-reduce", 4, 4)[0] == pytest.approx(18e-3, rel=1e-3)
    assert machine.find_exchange("all-reduce", 1, 4)[0] == 0.0


def predicted(record: Record, factor: float = 1.0) -> Record:
    """With a prediction that is so many times the truth."""
    machine = read_machine(record)
    assert machine is not None
    stack = replace(make_stack(None, "cpu"), parameters=TRUE, low=0.9, high=1.1)
    found = predict_case(read_job(record.job or {}), machine, stack)
    assert found is not None
    scaled = {key: factor * found[key] for key in ("step_s", "low_s", "high_s")}
    phases = {phase: factor * time_s for phase, time_s in found["phases_s"].items()}
    return replace(record, prediction={**found, **scaled, "phases_s": phases})


def test_scores_are_errors_of_all_of_phases_and_of_days() -> None:
    records = [
        predicted(RECORDS[0]),
        predicted(replace(RECORDS[1], measured_at="2026-11-18T10:00:00+00:00"), 1.2),
    ]
    judged = judge_all([*records, RECORDS[2]])
    assert [each.is_inside for each in judged] == [True, False]
    tallies = {each.name: each for each in tally(judged)}
    assert tallies["step"].mean_error == pytest.approx(0.1, abs=1e-6)
    assert tallies["step"].inside == 0.5
    assert tallies["backward"].largest_error == pytest.approx(0.2, abs=1e-6)
    assert tallies["2026-11-18"].bias == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize("step_s", [None, "x", True, -1, 1e99, {}])
def test_a_prediction_that_is_none_is_not_scored(step_s: Any) -> None:
    record = replace(RECORDS[0], prediction={"step_s": step_s, "low_s": 1, "high_s": 2})
    assert judge(record) is None
    with pytest.raises(UsageError, match="no record carries a prediction"):
        judge_all([record])


def write(path: Path, records: Sequence[Record]) -> Path:
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


def test_the_commands(tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    results = write(tmp_path / "steps.jsonl", RECORDS)
    runner = CliRunner()
    told = runner.invoke(cli, ["calibrate", str(results), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert "calibrated by 6 records" in told.stdout
    assert "matmul_efficiency" in told.stdout
    assert find_calibration(SETUP, out) is not None
    as_json = runner.invoke(cli, ["calibrate", str(results), "--out", str(out), "--json"])
    assert json.loads(as_json.stdout)["rows"] == 6
    scored = write(tmp_path / "scored.jsonl", [predicted(record) for record in RECORDS])
    card = runner.invoke(cli, ["validate", str(scored)])
    assert card.exit_code == 0, card.output
    assert "steps small eager" in card.stdout
    content = json.loads(runner.invoke(cli, ["validate", str(scored), "--json"]).stdout)
    assert content["tallies"][0]["mean_error"] < 1e-6
