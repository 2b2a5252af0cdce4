"""Measured training steps that the cost model is fitted to, and judged by.

Three sets of them are published, by one team on A100:

    mosaicgpt-2022         87 jobs of MosaicGPT, on memories of 40 and 80 GB
    llm-foundry-2023       55 jobs of its successor, on 40 GB
    llm-foundry-2023-late  42 more, on 80 GB

The two of llm-foundry are separate because the cost model separates them: jobs with full activation
checkpointing are 6 to 8 % faster on 80 GB than those on 40 GB let one expect, by just what a
framework saves that stops recomputing before the last matmul of a block. Nobody has published
which versions they ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from flopwatch.jobs.model_shapes import SHAPES
from flopwatch.jobs.training_job import TrainingJob, read_job
from flopwatch.prediction.cost import Phase
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_rows import Row, parse_rows
from flopwatch.prediction.predictions import estimate_memory, find_pressure
from flopwatch.records import published
from flopwatch.records.record import Record

WHOLE: tuple[Phase, ...] = ("forward", "backward", "optimizer")
OLD, EARLY, LATE = "mosaicgpt-2022", "llm-foundry-2023", "llm-foundry-2023-late"
FAMILIES = {EARLY: "llm-foundry", LATE: "llm-foundry"}
STACK_OF_DEVICE = {"a100_40gb": EARLY, "a100_80gb": LATE}
"""Of the rows of llm-foundry."""
DEVICES = {
    "NVIDIA A100-SXM4-40GB": "A100-SXM-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    job: TrainingJob
    machine: Machine
    """That each of its ranks has."""
    stack: str
    time_s: float
    """Of all `phases` together."""
    phases: tuple[Phase, ...] = WHOLE
    pressed_gb: float = 0.0
    """What it holds, where that nearly fills the memory."""

    @property
    def size(self) -> str:
        """What the model is called, or how wide it is: what a fit may be asked to do without."""
        return SIZES.get(self.job.shape.hidden_size, str(self.job.shape.hidden_size))

    @property
    def tokens_per_s(self) -> float:
        return self.job.tokens_per_step / self.time_s


SIZES = {
    shape.hidden_size: name.removeprefix("gpt-")
    for name, shape in SHAPES.items()
    if name.startswith("gpt-")
}


@cache
def load_published() -> tuple[Observation, ...]:
    """All 184."""
    text = (resources.files(__package__) / "data" / "foundry.csv").read_text(encoding="utf-8")
    rows = parse_rows(text, "foundry.csv")
    return (*map(_convert_record, published.load("mosaic")), *map(convert_row, rows))


def convert_row(row: Row) -> Observation:
    """Of a row that has a measured speed."""
    assert row.tokens_per_s is not None
    stack = STACK_OF_DEVICE.get(row.device.lower(), LATE)
    time_s = row.job.tokens_per_step / row.tokens_per_s
    return _observe(row.job, _find_machine(row.device), stack, time_s)


def _observe(job: TrainingJob, machine: Machine, stack: str, time_s: float) -> Observation:
    pressed_gb = find_pressure(estimate_memory(job, machine, find_family(stack)))
    return Observation(job=job, machine=machine, stack=stack, time_s=time_s, pressed_gb=pressed_gb)


def find_family(stack: str) -> str:
    return FAMILIES.get(stack, stack)


@cache
def _find_machine(name: str) -> Machine:
    return find_machine(name)[1]


def _convert_record(record: Record) -> Observation:
    job = read_job(record.job or {})
    # A published model has a learned position for each token of its sequences, and no more.
    job = replace(job, model=replace(job.shape, positions=job.seq_len))
    machine = _find_machine(DEVICES[record.environment["torch"]["gpu"]["name"]])
    return _observe(job, machine, OLD, record.samples_ns["step"][0] / 1e9)


def list_stacks(observations: Iterable[Observation]) -> list[str]:
    return list(dict.fromkeys(each.stack for each in observations))
