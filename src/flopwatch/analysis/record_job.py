"""What a record measured, as its suite declared it: a training job, or one linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flopwatch.analysis.record_device import (
    count_ranks,
    describe_missing_peak,
    find_rank_peak,
    find_record_device,
    name_arithmetic,
)
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.jobs.conventions import Convention
from flopwatch.jobs.model_shapes import ARCHITECTURES
from flopwatch.jobs.training_job import TrainingJob, read_job, read_layer
from flopwatch.jobs.utilisation import ALL, JobUtilisation, compute_utilisations
from flopwatch.layers import registry
from flopwatch.models.job_estimates import count_once
from flopwatch.records.record import Record

PASSES = ("forward", "backward")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A linear layer, as far as its time can be predicted."""

    tokens: int
    inputs: int
    outputs: int
    density: float
    """How many weights it has, of a dense layer's."""
    element_bytes: int
    is_plain: bool
    """Whether all its matmuls are in the dtype of its inputs."""


Subject = TrainingJob | Layer


def read_training_job(record: Record) -> TrainingJob | None:
    """In the arithmetic that its device really used for float32; None where the record is of
    something else, or where it is damaged."""
    if not record.job or "seq_len" not in record.job:
        return None
    try:
        job = read_job(record.job)
    except FlopwatchError:
        return None
    is_rounded = job.precision == "fp32" and name_arithmetic(record, "float32") == "tf32"
    return replace(job, precision="tf32") if is_rounded else job


def read_subject(record: Record) -> Subject | None:
    """What the cost model knows: a job of a model with known dimensions, or a layer."""
    job = read_training_job(record)
    if job is not None:
        return job if job.shape.architecture in ARCHITECTURES else None
    try:
        return _read_layer(record)
    except FlopwatchError:  # a layer that is not known here
        return None


def _read_layer(record: Record) -> Layer | None:
    found = read_layer(record.job or {})
    if found is None:
        return None
    density = registry.find_density(registry.parse(found.linear))
    dtypes = {each for counts in record.flops.values() for each in counts}
    return Layer(
        tokens=found.tokens,
        inputs=found.inputs,
        outputs=found.outputs,
        density=1.0 if density is None else density,
        element_bytes=found.element_bytes,
        is_plain=len(dtypes) == 1 and density is not None,
    )


def name_recorded(job: TrainingJob) -> TrainingJob:
    """With the dtype that records count FLOPs in: rounding float32 is the device's doing."""
    return replace(job, precision="fp32") if job.precision == "tf32" else job


def count_flops(record: Record, subject: Subject | None) -> dict[str, dict[str, float]]:
    """By phase and dtype, as the record declares them, or where it declares none, as published ones
    do not, from the dimensions of its job."""
    if record.flops or not isinstance(subject, TrainingJob):
        return record.flops
    return {
        phase: {dtype: subject.micro_batches * count for dtype, count in by_dtype.items()}
        for phase, by_dtype in count_once(name_recorded(subject)).items()
        if phase in PASSES
    }


def find_matmul_dtype(record: Record) -> str | None:
    """As peaks are listed by; None where the record is of no training job."""
    job = read_training_job(record)
    return None if job is None else job.arithmetic.matmul_dtype


def find_built_parameters(record: Record) -> int | None:
    parameters = record.facts.get("parameters")
    return None if parameters is None else round(parameters)


def assess_record(
    record: Record, tokens_per_s: float | None, *, conventions: Sequence[Convention] = ALL
) -> JobUtilisation:
    """By the nominal peak of the device that a record names, or where that is not known, by the one
    that was measured; without `tokens_per_s`, in no convention.

    Where layers are swapped, or transformers has built what has no count here, only conventions
    that count by parameters can be applied.
    """
    job = read_training_job(record)
    if job is None:
        raise UsageError(
            f"a record of {record.suite!r} has no training job with a model and a sequence length, "
            "which a utilisation needs"
        )
    dtype = job.arithmetic.matmul_dtype
    applied = conventions
    if not job.is_dense or job.shape.architecture not in ARCHITECTURES:
        applied = [each for each in conventions if not each.needs_parts]
    device, peak = find_record_device(record), find_rank_peak(record, dtype)
    missing = describe_missing_peak(record, dtype)
    return JobUtilisation(
        job=job,
        devices=count_ranks(record),
        device=None if device is None else device.name,
        peak=peak,
        missing=missing,
        utilisations=()
        if tokens_per_s is None
        else compute_utilisations(
            job,
            tokens_per_s,
            devices=count_ranks(record),
            peak=peak,
            missing=missing,
            conventions=applied,
            built=find_built_parameters(record),
        ),
    )
