"""Many jobs at once: every combination of lists, or the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from flopwatch.devices.device_names import split_hardware
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.parallelism import Parallelism, require_data_only
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.calibration import HERE, describe_here, find_device_stack
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_rows import Row
from flopwatch.prediction.predictions import Prediction, pad_as_published, predict
from flopwatch.prediction.software_stacks import Stack, choose_stack, find_stack

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
    stack: str | None = None,
    network_gbit: float | None = None,
) -> tuple[list[Prediction], list[str]]:
    """Of every combination of the lists, which are named as in AXES; of those that cannot be, why.
    Refused where none can be. `global_batch_tokens` takes the place of grad_accum; `split` has the
    fields of `Parallelism` that divide a model.

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
            job = _make_job(dict(zip(axes, values, strict=True)), global_batch_tokens, split or {})
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
    parallelism = Parallelism(**split, sharding=sharding if devices > 1 else "none")
    require_data_only(parallelism, "predict")
    if global_batch_tokens is not None:
        at_once = given["micro_batch"] * given["seq_len"] * devices
        given["grad_accum"] = share_batch(global_batch_tokens, at_once)
    return TrainingJob(**given, parallelism=replace(parallelism, data=devices))


def predict_job(
    job: TrainingJob, stack: str | None = None, network_gbit: float | None = None
) -> Prediction:
    """On its hardware, whose devices are the job's ranks: a job of one rank is taken for one of
    each of them."""
    if job.hardware is None:
        raise UsageError("what hardware the job runs on is not known; give it, as in 8xA100-80GB")
    devices, machine, chosen = find_hardware(job.hardware, stack, network_gbit)
    return _predict(place_on(pad_as_published(job, chosen), devices), machine, chosen)


def place_on(job: TrainingJob, devices: int) -> TrainingJob:
    """With a rank on each device; a job of one rank becomes data parallel."""
    if job.ranks == devices:
        return job
    if job.ranks == 1:
        return job.on_ranks(devices)
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
    text: str, stack: str | None, network_gbit: float | None
) -> tuple[int, Machine, Stack]:
    """How many devices, what one of them can do, and how near to that software comes: as named, or
    else as is known of the device."""
    count, name = split_hardware(text)
    if name == HERE:
        if count > 1:
            raise UsageError(f"--hardware {text}: there is one machine here; write {HERE}")
        here, own = describe_here()
        return 1, here, find_stack(stack) if stack else own
    count, machine = find_machine(text, network_gbit)
    return count, machine, _find_stack(stack, machine)


def _find_stack(name: str | None, machine: Machine) -> Stack:
    """As named; else what records of the device were calibrated to, or published data."""
    if name:
        return find_stack(name)
    return find_device_stack(machine) or choose_stack(machine)


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
    prediction: Prediction

    @property
    def error(self) -> float | None:
        """Of tokens/s, relatively; None where nothing was measured."""
        measured = self.row.tokens_per_s
        return None if measured is None else self.prediction.tokens_per_s / measured - 1


def predict_rows(
    rows: Sequence[Row], stack: str | None, network_gbit: float | None
) -> list[Predicted]:
    """A row may name a stack of its own, in a column."""
    found = []
    for row in rows:
        try:
            machine = find_machine(row.device, network_gbit)[1]
            chosen = _find_stack(stack or row.cells.get("stack"), machine)
            found.append(Predicted(row=row, prediction=_predict(row.job, machine, chosen)))
        except UsageError as error:
            raise UsageError(f"{row.place}: {error}") from None
    return found
