"""Many jobs at once: every combination of lists, or the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from flopwatch.devices.device_names import split_hardware
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.parallelism import Parallelism, is_data_only
from flopwatch.jobs.precision import PRECISIONS
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.calibration import HERE, describe_here, find_device_stack
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_rows import Row
from flopwatch.prediction.predictions import Prediction, pad_as_published, predict
from flopwatch.prediction.row_hardware import find_row_machine
from flopwatch.prediction.software_stacks import (
    SHARDED,
    Stack,
    choose_row_stack,
    choose_stack,
    find_stack,
)

MOST = 2000
"""Combinations of one question."""
AXES: Mapping[str, Sequence[Any]] = {
    "model": (),
    "seq_len": (),
    "hardware": (),
    "micro_batch": (1,),
    "grad_accum": (1,),
    "recompute": ("none",),
    "sharding": ("full",),
    "precision": ("bf16-mixed",),
    "optimizer": ("adamw",),
}
"""What can be a list, and what is usual."""


def predict_lists(
    lists: Mapping[str, Sequence[Any]],
    *,
    global_batch_tokens: float | None = None,
    split: Mapping[str, Any] | None = None,
    alike: Mapping[str, Any] | None = None,
    stack: str | None = None,
    network_gbit: float | None = None,
) -> tuple[list[Prediction], list[str]]:
    """Of every combination of the lists, which are named as in AXES; of those that cannot be, why.
    Refused where none can be. `global_batch_tokens` takes the place of grad_accum; `split` has the
    fields of `Parallelism` that divide a model, and `alike` those of the job that all have in
    common.

    >>> lists = {"model": ["1b", "7b"], "seq_len": [2048], "hardware": ["8xA100-80GB"]}
    >>> [each.job.ranks for each in predict_lists(lists)[0]]
    [8, 8]
    """
    axes = {**AXES, **{name: values for name, values in lists.items() if values}}
    combinations = list(product(*axes.values()))
    if len(combinations) > MOST:
        raise UsageError(
            f"that asks for {len(combinations):,} combinations; give shorter lists, of at most "
            f"{MOST:,} together"
        )
    found, refusals = [], []
    for values in combinations:
        try:
            given = {**(alike or {}), **dict(zip(axes, values, strict=True))}
            job = _make_job(given, global_batch_tokens, split or {})
            found.append(predict_job(job, stack, network_gbit))
        except UsageError as error:
            refusals.append(str(error))
    if not found:
        raise UsageError(refusals[0])
    return found, list(dict.fromkeys(refusals))


def _make_job(
    given: dict[str, Any], global_batch_tokens: float | None, split: Mapping[str, Any]
) -> TrainingJob:
    devices, _ = split_hardware(given["hardware"])
    sharding = given.pop("sharding")
    # Experts are divided among data-parallel ranks, which are not known yet.
    alone = {name: value for name, value in split.items() if name != "expert"}
    parallelism = Parallelism(**alone, sharding=sharding if devices > 1 else "none")
    job = place_on(TrainingJob(**given, parallelism=parallelism), devices)
    expert = split.get("expert", 1)
    job = replace(job, parallelism=replace(job.parallelism, expert=expert))
    if global_batch_tokens is None:
        return job
    at_once = job.micro_batch_tokens * job.parallelism.data
    return replace(job, grad_accum=share_batch(global_batch_tokens, at_once))


def predict_job(
    job: TrainingJob, stack: str | None = None, network_gbit: float | None = None
) -> Prediction:
    """On its hardware, whose devices are the job's ranks: a job of one data-parallel rank is taken
    for one of as many as there are devices for."""
    if job.hardware is None:
        raise UsageError("what hardware the job runs on is not known; give it, as in 8xA100-80GB")
    devices, machine, chosen = find_hardware(job.hardware, stack, network_gbit, job)
    return _predict(place_on(pad_as_published(job, chosen), devices), machine, chosen)


def place_on(job: TrainingJob, devices: int) -> TrainingJob:
    """With a rank on each device; a job of one data-parallel rank gets as many as there is room
    for."""
    split = job.parallelism
    if job.ranks == devices:
        return job
    if split.data == 1 and devices % job.ranks == 0:
        placed = replace(split, data=devices // job.ranks)
        return replace(job, parallelism=placed)
    if split.data == 1:
        raise UsageError(
            f"tensor, pipeline and context parallelism divide the job among {job.ranks} ranks, and "
            f"{devices} devices are no multiple of that; change one of them"
        )
    raise UsageError(
        f"the job has {job.ranks} ranks and the hardware {devices} devices; a rank needs one each: "
        "change the hardware, or the parallelism"
    )


def _predict(job: TrainingJob, machine: Machine, stack: Stack) -> Prediction:
    try:
        return predict(job, machine, stack)
    except Unsupported as error:  # so few ranks cannot be divided in two ways
        raise UsageError(str(error)) from None


def find_hardware(
    text: str,
    stack: str | None,
    network_gbit: float | None,
    job: TrainingJob | None = None,
) -> tuple[int, Machine, Stack]:
    """How many devices, what one of them can do, and how near to that software comes: as named, or
    else as is known of the device, and of jobs like this one."""
    count, name = split_hardware(text)
    if name == HERE:
        if count > 1:
            raise UsageError(f"--hardware {text}: there is one machine here; write {HERE}")
        here, own = describe_here()
        return 1, here, find_stack(stack) if stack else own
    count, machine = find_machine(text, network_gbit)
    if stack:
        return count, machine, find_stack(stack)
    return count, machine, find_device_stack(machine) or choose_stack(machine, job)


def share_batch(batch_tokens: float, at_once: int) -> int:
    """Micro-batches of a rank: as many as come nearest to the batch, which need not divide it.

    >>> share_batch(4e6, 2048 * 4 * 64), share_batch(1000, 2048)
    (8, 1)
    """
    return max(1, round(batch_tokens / at_once))


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """A row of a table, and what was predicted of it."""

    row: Row
    prediction: Prediction | None
    """None: nothing, for this reason."""
    reason: str | None = None

    @property
    def error(self) -> float | None:
        """Of tokens/s, relatively; None where nothing was measured, or predicted."""
        measured = self.row.tokens_per_s
        if measured is None or self.prediction is None:
            return None
        return self.prediction.tokens_per_s / measured - 1


def predict_rows(
    rows: Sequence[Row], stack: str | None, network_gbit: float | None
) -> list[Predicted]:
    """A row may name a stack of its own, in a column. What cannot be predicted says why."""
    return [_predict_row(row, stack, network_gbit) for row in rows]


def _predict_row(row: Row, stack: str | None, network_gbit: float | None) -> Predicted:
    if row.job is None:
        return Predicted(row=row, prediction=None, reason=row.reason)
    try:
        machine = find_row_machine(row.cells, network_gbit)
        job = choose_known_precision(row.job, machine)
        chosen = find_stack(stack) if stack else choose_row_stack(row.cells, machine, job)
        if network_gbit is None and chosen.habits.network_gbit:
            machine = find_row_machine(row.cells, chosen.habits.network_gbit)
        if not stack and chosen.name in SHARDED and is_data_only(job.parallelism):
            chosen = find_device_stack(machine) or chosen
        return Predicted(row=row, prediction=_predict(job, machine, chosen))
    except UsageError as error:
        return Predicted(row=row, prediction=None, reason=str(error))


def choose_known_precision(job: TrainingJob, machine: Machine) -> TrainingJob:
    """The same in the next wider precision that the device has arithmetic for: what a framework
    falls back to.

    >>> job = TrainingJob("1b", 2048, precision="fp8")
    >>> choose_known_precision(job, find_machine("A100-80GB")[1]).precision
    'bf16-mixed'
    """
    for name in (job.precision, *WIDER):
        tried = PRECISIONS[name]
        if {tried.matmul_dtype, tried.activation_dtype} <= set(machine.peak_flops_per_s):
            return replace(job, precision=name)
    return job


WIDER = ("fp8", "bf16-mixed", "fp16-mixed", "tf32", "fp32")
