"""Cases of our own suites as jobs: what a record says of the cost model, and what that says of a
case before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flopwatch.analysis.record_device import find_record_device, name_arithmetic
from flopwatch.analysis.samples import estimate_total_ns
from flopwatch.analysis.statistics import median
from flopwatch.devices.measured_peaks import from_environment
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, find_dimensions
from flopwatch.jobs.variants import Mode, parse_mode, parse_training_mode
from flopwatch.prediction.cost import Phase
from flopwatch.prediction.cost_job import Job, make_job
from flopwatch.prediction.hardware import Machine, describe_device, describe_measured, share_among
from flopwatch.prediction.observations import WHOLE, Observation
from flopwatch.prediction.predictions import predict
from flopwatch.prediction.software_stacks import Stack
from flopwatch.records.record import Record

OURS = "flopwatch"
"""The stack that our own suites are measured with."""
FOUND = ("micro_batch", "accumulation")
"""Facts of a record that stand for parameters which were to be found."""
LARGEST = 2**30
"""No count of a job is larger."""


def find_job(suite: str, variant: str, params: Mapping[str, Any]) -> Job | None:
    """That a case of our suites is; None where its cost cannot be told from its dimensions: other
    layers, compiled ones, plain attention."""
    parse = {"steps": parse_mode, "training": parse_training_mode}.get(suite)
    if parse is None:
        return None
    try:
        mode, shape = parse(variant), find_dimensions(str(params.get("model")))
        if not _is_plain(mode) or shape.architecture not in ARCHITECTURES:
            return None
        counts = {
            "tokens": params["context"],
            "micro_batch": params["batch" if suite == "steps" else "micro_batch"],
            "accumulation": _find_accumulation(params),
            "ranks": params.get("ranks", 1),
        }
        if not all(isinstance(n, int) and 1 <= n <= LARGEST for n in counts.values()):
            return None
        return make_job(
            shape,
            **counts,
            sharding=mode.sharding or "plain",
            recompute=mode.recompute,
            precision=params["precision"],
            optimizer=params["optimizer"],
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, UsageError):
        # An axis of somebody's own, or a damaged record.
        return None


def _is_plain(mode: Mode) -> bool:
    return mode.spec == "dense" and mode.attention == "sdpa" and not mode.compiled


def _find_accumulation(params: Mapping[str, Any]) -> int:
    given = params.get("accumulation")
    if given is None and "global_batch" in params:
        given = params["global_batch"] // (params["micro_batch"] * params["ranks"])
    return given or 1


def find_rank_machine(machine: Machine, job: Job, device: str) -> Machine:
    """What a rank of the job has: of a CPU, its share."""
    return share_among(machine, job.ranks) if device == "cpu" else machine


def read_machine(record: Record) -> Machine | None:
    """Where it was measured: by its peaks, or else by its data sheet."""
    peaks = from_environment(record.environment)
    total = record.environment.get("machine", {}).get("memory_total_bytes")
    machine = describe_measured(peaks, total) if peaks is not None else None
    if machine is None:
        device = find_record_device(record)
        machine = None if device is None else describe_device(device)
    return machine


def observe(record: Record) -> list[Observation]:
    """What a record says of the phases of its step; nothing where it is no step, or where its
    machine is not known."""
    if record.status != "ok" or len(record.rounds) <= record.warmup_samples:
        return []
    job = find_job(record.suite, record.variant, _read_params(record))
    machine = read_machine(record)
    if job is None or machine is None:
        return []
    own = find_rank_machine(machine, job, record.settings.device)
    base = Observation(job=job, machine=own, stack=OURS, time_s=1.0)
    if set(record.samples_ns) != set(WHOLE):
        return [replace(base, time_s=estimate_total_ns(record).value / 1e9)]
    return [replace(base, phases=(phase,), time_s=_find_median_s(record, phase)) for phase in WHOLE]


def _read_params(record: Record) -> dict[str, Any]:
    """With what was found where it was to be as large as fits, and what a GPU makes of float32."""
    found: dict[str, Any] = {n: round(record.facts[n]) for n in FOUND if n in record.facts}
    is_rounded = name_arithmetic(record, "float32") == "tf32"
    if is_rounded and record.params.get("precision") == "fp32":
        found = {**found, "precision": "tf32"}
    return {**record.params, **found}


def _find_median_s(record: Record, phase: Phase) -> float:
    return median(record.samples_ns[phase][record.warmup_samples :]) / 1e9


def predict_case(
    suite: str, variant: str, params: Mapping[str, Any], machine: Machine, stack: Stack, device: str
) -> dict[str, Any] | None:
    """A prediction to be stored beside what will be measured; None where there is none to make."""
    job = find_job(suite, variant, params)
    if job is None:
        return None
    try:
        found = predict(job, find_rank_machine(machine, job, device), stack)
    except (UsageError, Unsupported):  # no peak in this dtype, no link, too few ranks
        return None
    return {
        "stack": stack.name,
        "source": stack.source,
        "step_s": found.cost.step_s,
        "low_s": job.step_tokens / found.high,
        "high_s": job.step_tokens / found.low,
        "phases_s": {phase: found.cost.sum_phase(phase) for phase in WHOLE},
    }
