"""Published training steps, which software stacks are fitted to.

    mosaicgpt-2022             87 jobs of MosaicGPT, on A100 of 40 and 80 GB
    llm-foundry-2023           55 jobs of its successor, on 40 GB
    llm-foundry-2023-late      42 more, on 80 GB
    megatron-deepspeed-2023    1,010 jobs on 2 to 512 A100: github VIA-Research/vTrain, MIT
    megatron-deepspeed-2022    81 jobs on 8 to 384 A100: the search before BLOOM, github
                               bigscience-workshop/bigscience, chronicles-prequel.md, Apache 2.0
    megatron-deepspeed-2021    48 jobs on V100: the same, gpt2.md and tr3m-1B3.md
    deepspeed-zero3-2021       10 jobs of ZeRO-3 on V100 and A100: the same, and Narayanan et al.
                               2021
    megatron-lm-2021           17 jobs on 8 to 3,072 A100: Narayanan et al. 2021 with the authors'
                               run_table_1.sh, Korthikanti et al. 2022 with configurations of github
                               calculon-ai/calculon, Apache 2.0
    internevo-2024             33 jobs on 8 to 1,024 A100: github InternLM/InternEvo, Apache 2.0

The two of llm-foundry are separate because the cost model separates them: jobs with full activation
checkpointing are 6 to 8 % faster on 80 GB than to be expected from those on 40 GB, by just what a
framework saves that stops recomputing before the last matmul of a block. Nobody has published
which versions they ran.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from flopwatch.jobs.model_shapes import SHAPES
from flopwatch.jobs.training_job import TrainingJob, read_job
from flopwatch.prediction.cost import Phase
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_arrays import NO_HABITS, Placed
from flopwatch.prediction.job_rows import parse_rows
from flopwatch.prediction.predictions import estimate_memory, find_pressure
from flopwatch.prediction.row_hardware import find_row_machine
from flopwatch.prediction.software_stacks import (
    EARLY,
    FAMILIES,
    HABITS,
    LATE,
    OLD,
    find_origin,
)
from flopwatch.records import published

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

WHOLE: tuple[Phase, ...] = ("forward", "backward", "optimizer")
STACK_OF_DEVICE = {"a100_40gb": EARLY, "a100_80gb": LATE}
"""Of the rows of llm-foundry."""


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
    source: str = ""
    """The table that it is from."""
    is_doubtful: bool = False

    @property
    def size(self) -> str:
        """What the model is called, or how wide it is: what a fit may be asked to do without."""
        return SIZES.get(self.job.shape.hidden_size, str(self.job.shape.hidden_size))

    @property
    def placed(self) -> Placed:
        return Placed(
            self.job, self.machine, HABITS.get(self.stack, NO_HABITS), self.pressed_gb
        )  # fmt: skip


SIZES = {
    shape.hidden_size: name.removeprefix("gpt-")
    for name, shape in SHAPES.items()
    if name.startswith("gpt-")
}


@cache
def load_published() -> tuple[Observation, ...]:
    """All 1,383."""
    return (*load_sharded(), *load_parallel())


@cache
def load_sharded() -> tuple[Observation, ...]:
    """The 184 of FSDP."""
    steps: list[tuple[TrainingJob, str, str, float]] = []
    for record in published.load("mosaic"):
        job = read_job(record.job or {})
        # A published model has a learned position for each token of its sequences, and no more.
        job = replace(job, model=replace(job.shape, positions=job.seq_len))
        device = record.environment["torch"]["gpu"]["name"]
        steps.append((job, device, OLD, record.samples_ns["step"][0] / 1e9))
    text = (resources.files(__package__) / "data" / "foundry.csv").read_text(encoding="utf-8")
    for row in parse_rows(text, "foundry.csv"):
        assert row.tokens_per_s is not None
        assert row.job is not None
        time_s = row.job.tokens_per_step / row.tokens_per_s
        steps.append((row.job, row.device, STACK_OF_DEVICE[row.device], time_s))
    machines = {device: find_machine(device)[1] for _, device, _, _ in steps}
    return tuple(
        Observation(
            job=job,
            machine=machines[device],
            stack=stack,
            time_s=time_s,
            pressed_gb=find_pressure(estimate_memory(job, machines[device], find_family(stack))),
            source="mosaicgpt" if stack == OLD else "llm-foundry",
        )
        for job, device, stack, time_s in steps
    )


@cache
def load_parallel() -> tuple[Observation, ...]:
    """The 1,199 of tensor, pipeline and data parallelism."""
    text = (resources.files(__package__) / "data" / "parallel_jobs.csv").read_text(encoding="utf-8")
    found = []
    for row in parse_rows(text, "parallel_jobs.csv"):
        assert row.job is not None
        stack = find_origin(row.cells)
        assert stack is not None
        found.append(
            Observation(
                job=row.job,
                machine=find_row_machine(row.cells, HABITS[stack].network_gbit),
                stack=stack,
                time_s=float(row.cells["step_time_s"]),
                source=row.cells["source"],
                is_doubtful=row.cells["quality"] != "clean",
            )
        )
    return tuple(found)


def find_family(stack: str) -> str:
    return FAMILIES.get(stack, stack)
