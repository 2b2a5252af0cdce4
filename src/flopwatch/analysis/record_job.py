"""What a record measured, as far as its time can be predicted: a training step of a model with
known dimensions, or one linear layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flopwatch.analysis.record_device import count_ranks, name_arithmetic
from flopwatch.errors import FlopwatchError, LayerError, Unsupported
from flopwatch.jobs.model_shapes import find_dimensions
from flopwatch.jobs.step_flops import count_mode_flops
from flopwatch.jobs.step_memory import DTYPE_BYTES
from flopwatch.jobs.variants import OPTIMIZERS, Mode, parse_mode, parse_training_mode
from flopwatch.jobs.variants import PRECISIONS as MODE_PRECISIONS
from flopwatch.layers import registry
from flopwatch.prediction.cost_job import Job, make_job
from flopwatch.records.record import Record

PRECISIONS = {
    ("float32", "off"): "fp32",
    ("float32", "bfloat16"): "bf16-mixed",
    ("float32", "float16"): "fp16-mixed",
    ("bfloat16", "off"): "bf16",
}
"""By what a record's conditions say of dtype and autocast."""
PASSES = ("forward", "backward")
LARGEST = 2**40
"""No axis of a model or a layer is larger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    job: Job
    """Of one rank, as if it were alone."""
    mode: Mode
    ranks: int

    @property
    def shared_job(self) -> Job:
        """The same with all ranks."""
        return replace(self.job, ranks=self.ranks, sharding=self.mode.sharding or "plain")

    @property
    def is_dense(self) -> bool:
        """Whether all layers are the model's own."""
        return self.mode.spec == "dense"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A linear layer."""

    tokens: int
    inputs: int
    outputs: int
    density: float
    """How many weights it has, of a dense layer's."""
    element_bytes: int
    is_plain: bool
    """Whether all its products are in the dtype of its inputs."""


Subject = Step | Layer


def count_flops(record: Record, subject: Subject | None) -> dict[str, dict[str, float]]:
    """By phase and dtype, as the record declares them, or where it declares none, as others'
    published ones do not, from the dimensions of its step."""
    if record.flops or not isinstance(subject, Step):
        return record.flops
    job = subject.job
    once = count_mode_flops(
        job.shape,
        subject.mode,
        (job.micro_batch, job.tokens),
        MODE_PRECISIONS["fp32" if job.precision == "tf32" else job.precision],
        job.optimizer,
    )
    batches = subject.ranks * job.accumulation
    return {
        phase: {dtype: batches * count for dtype, count in by_dtype.items()}
        for phase, by_dtype in once.items()
        if phase in PASSES
    }


def read_subject(record: Record) -> Subject | None:
    """None for what is neither, and for a record that does not say enough."""
    reader = READERS.get(record.suite)
    try:
        return None if reader is None else reader(record)
    except (
        FlopwatchError,
        LayerError,
        Unsupported,
        KeyError,
        OverflowError,
        TypeError,
        ValueError,
    ):
        return None  # somebody's own suite of that name, or an architecture that is not known


def _read_step(record: Record) -> Step:
    params = record.params
    return _make_step(
        record, parse_mode(record.variant), batch=params["batch"], tokens=params["context"]
    )


def _read_training(record: Record) -> Step:
    given: Mapping[str, Any] = {**record.params, **record.facts}  # facts know what auto has found
    return _make_step(
        record,
        parse_training_mode(record.variant),
        batch=round(given["micro_batch"]),
        tokens=record.params["context"],
        accumulation=round(given.get("accumulation", 1)),
    )


def _read_exchanged(record: Record) -> Subject | None:
    level = record.params.get("level")
    if level == "layer":
        return _read_layer(record)
    if level != "model":
        return None
    sequences, tokens = record.params["batch"]
    mode = Mode(spec=record.variant, match=record.params.get("swapped", "feed-forward"))
    return _make_step(record, mode, batch=sequences, tokens=tokens)


def _make_step(
    record: Record, mode: Mode, *, batch: int, tokens: int, accumulation: int = 1
) -> Step:
    _require_counts(batch, tokens, accumulation)
    model, optimizer = record.params["model"], record.params.get("optimizer", "adamw")
    if not isinstance(model, str) or optimizer not in OPTIMIZERS:
        raise ValueError(model, optimizer)
    job = make_job(
        find_dimensions(model),
        tokens=tokens,
        micro_batch=batch,
        accumulation=accumulation,
        sharding="plain",
        recompute=mode.recompute,
        precision=_find_precision(record),
        optimizer=optimizer,
    )
    return Step(job=job, mode=mode, ranks=count_ranks(record))


def _require_counts(*counts: object) -> None:
    for count in counts:
        if not isinstance(count, int) or not 1 <= count <= LARGEST:
            raise ValueError(count)


def _find_precision(record: Record) -> str:
    conditions = record.conditions
    told = (conditions.get("dtype", ""), conditions.get("autocast", "off"))
    name = PRECISIONS[told] if told[0] else str(record.params["precision"])
    is_rounded = name == "fp32" and name_arithmetic(record, "float32") == "tf32"
    return "tf32" if is_rounded else name


def _read_layer(record: Record) -> Layer | None:
    if record.kind == "parts":
        return None
    density = registry.find_density(registry.parse(record.variant))
    (inputs, outputs), tokens = record.params["shape"], record.params["tokens"]
    _require_counts(inputs, outputs, tokens)
    dtype = record.conditions.get("dtype") or record.params["dtype"]
    dtypes = {each for counts in record.flops.values() for each in counts}
    return Layer(
        tokens=tokens,
        inputs=inputs,
        outputs=outputs,
        density=1.0 if density is None else density,
        element_bytes=DTYPE_BYTES[dtype],
        is_plain=len(dtypes) == 1 and density is not None,
    )


READERS: dict[str, Callable[[Record], Subject | None]] = {
    "steps": _read_step,
    "training": _read_training,
    "dyad": _read_exchanged,
    "switchback": _read_exchanged,
}
"""By suite."""
