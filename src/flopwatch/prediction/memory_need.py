"""What a rank of a job holds in memory, and whether that fits.

The parts are those that `flopwatch memory` predicts for our own transformer, which are exact for
it. Other stacks keep more or less of the same tensors: KEPT scales activations, and TEMPORARY what
is there for a moment only, most of it logits. They were chosen so that every published job fits,
since all of them ran; and for MosaicGPT, that those four jobs come close to the limit that are only
half as fast as their neighbours (760m on 40 GB): each of their micro-batches takes about a second
more than expected, whatever its context, as it would if memory was given back and asked for again.
Beyond tensors, a process needs what its libraries hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flopwatch.jobs.rank_memory import estimate_rank
from flopwatch.jobs.step_memory import Plan
from flopwatch.prediction.cost import count_job_shards
from flopwatch.prediction.cost_job import Job
from flopwatch.prediction.hardware import Machine

KEPT = {"mosaicgpt-2022": 1.29, "llm-foundry": 0.78}
"""Of what our own transformer keeps for the backward pass."""
TEMPORARY = {"mosaicgpt-2022": 1.29, "llm-foundry": 0.75}
"""Of what it holds besides."""
LIBRARIES_BYTES = 1.0e9
"""Of CUDA and NCCL: a context, kernels, buffers."""
NEARLY_FULL = 0.95
"""Of the memory: from there on it may have to be given back and asked for again."""
FOOTPRINT_PRECISIONS = {"fp8": "bf16-mixed", "tf32": "fp32"}
"""Of those that our own models do not have, one that keeps the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Of one rank. Bytes."""

    parts: dict[str, float]
    available_bytes: float | None
    """None: not known."""

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool | None:
        return None if self.available_bytes is None else self.total_bytes <= self.available_bytes


def estimate_memory(job: Job, machine: Machine, family: str | None) -> Memory:
    """`family` is that of the stack; None: our own."""
    plan = Plan(
        batch=job.micro_batch,
        context=job.tokens,
        precision=FOOTPRINT_PRECISIONS.get(job.precision, job.precision),
        optimizer=job.optimizer,
        checkpointed=job.recompute == "full",
        selective=job.recompute == "selective",
        device=machine.device,
    )
    shape = job.shape
    if shape.padded_vocabulary:
        shape = replace(shape, vocabulary=shape.padded_vocabulary, padded_vocabulary=None)
    shards = count_job_shards(job, machine)
    sizes = estimate_rank(shape, plan, job.sharding, shards, job.accumulation)
    scales: dict[str, Any] = {
        "activations": KEPT.get(family or "", 1.0),
        "temporary": TEMPORARY.get(family or "", 1.0),
    }
    parts = {name: size * scales.get(name, 1.0) for name, size in sizes.items()}
    if machine.device == "cuda":
        parts["libraries"] = LIBRARIES_BYTES
    return Memory(
        parts={name: size for name, size in parts.items() if size},
        available_bytes=machine.memory_bytes,
    )


def find_pressure(memory: Memory) -> float:
    """GB that are held where that nearly fills the memory; 0 elsewhere."""
    available = memory.available_bytes
    if available is None or memory.total_bytes < NEARLY_FULL * available:
        return 0.0
    return memory.total_bytes / 1e9
