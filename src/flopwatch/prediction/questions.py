"""What `flopwatch predict` is asked: every combination of what is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from flopwatch.devices.device_names import split_hardware
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.model_shapes import find_dimensions
from flopwatch.jobs.variants import Sharding
from flopwatch.prediction.calibration import HERE, describe_here, find_device_stack
from flopwatch.prediction.cost_job import Job, make_job
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_rows import Row
from flopwatch.prediction.predictions import Prediction, predict
from flopwatch.prediction.software_stacks import Stack, choose_stack, find_stack

SHARDINGS: Mapping[str, Sharding] = {
    "none": "plain",
    "ddp": "ddp",
    "full": "full-shard",
    "grad-op": "grad-op-shard",
    "hybrid": "hybrid-shard",
}
"""What the command line calls them."""
MOST = 2000
"""Combinations of one question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Lists, of which every combination is predicted."""

    models: Sequence[str]
    tokens: Sequence[int]
    hardware: Sequence[str]
    micro_batches: Sequence[int]
    accumulations: Sequence[int] = (1,)
    global_batch_tokens: float | None = None
    """Instead of accumulations."""
    recomputes: Sequence[str] = ("none",)
    shardings: Sequence[str] = ("full",)
    precisions: Sequence[str] = ("bf16-mixed",)
    optimizers: Sequence[str] = ("adamw",)
    stack: str | None = None
    """None: the one whose data are nearest to the device."""
    network_gbit: float | None = None
    """Of each device, between machines; None: what is usual."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What was asked in one combination, and predicted."""

    asked: Mapping[str, Any]
    prediction: Prediction


def answer(question: Question) -> tuple[list[Answer], list[str]]:
    """What is predicted, and of combinations that cannot be, why; refused where none can be."""
    axes: dict[str, Sequence[Any]] = {
        "model": question.models,
        "seq_len": question.tokens,
        "hardware": question.hardware,
        "micro_batch": question.micro_batches,
        "accumulation": [None] if question.global_batch_tokens else question.accumulations,
        "checkpoint": question.recomputes,
        "shard": question.shardings,
        "precision": question.precisions,
        "optimizer": question.optimizers,
    }
    combinations = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if len(combinations) > MOST:
        raise UsageError(
            f"that asks for {len(combinations):,} combinations; give shorter lists, of at most "
            f"{MOST:,} together"
        )
    found, refusals = [], []
    for asked in combinations:
        try:
            found.append(_answer(question, asked))
        except UsageError as error:
            refusals.append(str(error))
    if not found:
        raise UsageError(refusals[0])
    return found, list(dict.fromkeys(refusals))


def _answer(question: Question, asked: Mapping[str, Any]) -> Answer:
    count, machine, stack = find_hardware(asked["hardware"], question.stack, question.network_gbit)
    at_once = asked["micro_batch"] * asked["seq_len"] * count
    accumulation = asked["accumulation"] or share_batch(question.global_batch_tokens or 0, at_once)
    job = make_job(
        find_dimensions(asked["model"]),
        tokens=asked["seq_len"],
        micro_batch=asked["micro_batch"],
        accumulation=accumulation,
        ranks=count,
        sharding=SHARDINGS[asked["shard"]] if count > 1 else "plain",
        recompute=asked["checkpoint"],
        precision=asked["precision"],
        optimizer=asked["optimizer"],
    )
    return Answer(
        asked={**asked, "accumulation": accumulation}, prediction=_predict(job, machine, stack)
    )


def _predict(job: Job, machine: Machine, stack: Stack) -> Prediction:
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


def answer_rows(
    rows: Sequence[Row], stack: str | None, network_gbit: float | None
) -> list[Predicted]:
    return [_answer_row(row, stack, network_gbit) for row in rows]


def _answer_row(row: Row, stack: str | None, network_gbit: float | None) -> Predicted:
    """A row may name a stack of its own, in a column."""
    try:
        machine = find_machine(row.device, network_gbit)[1]
        chosen = _find_stack(stack or row.cells.get("stack"), machine)
        return Predicted(row=row, prediction=_predict(row.job, machine, chosen))
    except UsageError as error:
        raise UsageError(f"{row.place}: {error}") from None


def describe_job(job: Job) -> str:
    """What is not said by the model's name, in a few words."""
    parts = [
        f"{job.micro_batch} x {job.tokens:,} tokens at a time",
        *([f"{job.accumulation} times"] if job.accumulation > 1 else []),
        job.sharding if job.ranks > 1 else "",
        "" if job.recompute == "none" else f"{job.recompute} recomputation",
        job.precision,
    ]
    return ", ".join(part for part in parts if part)
