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

from dataclasses import replace

from flopwatch.jobs.rank_memory import Memory, estimate_rank
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.job_estimates import estimate_step
from flopwatch.prediction.cost import count_job_shards
from flopwatch.prediction.hardware import Machine

KEPT = {"mosaicgpt-2022": 1.29, "llm-foundry": 0.78}
"""Of what our own transformer keeps for the backward pass."""
TEMPORARY = {"mosaicgpt-2022": 1.29, "llm-foundry": 0.75}
"""Of what it holds besides."""
LIBRARIES_BYTES = 1.0e9
"""Of CUDA and NCCL: a context, kernels, buffers."""
NEARLY_FULL = 0.95
"""Of the memory: from there on it may have to be given back and asked for again."""


def estimate_memory(job: TrainingJob, machine: Machine, family: str | None) -> Memory:
    """`family` is that of the software stack; None: our own."""
    shape = job.shape
    if shape.padded_vocabulary:
        shape = replace(shape, vocabulary=shape.padded_vocabulary, padded_vocabulary=None)
    shards = count_job_shards(job, machine)
    built = replace(job, model=shape, parallelism=replace(job.parallelism, ranks_per_node=shards))
    sizes = estimate_rank(built, machine.device, estimate=estimate_step)
    scales = {
        "activations": KEPT.get(family or "", 1.0),
        "temporary": TEMPORARY.get(family or "", 1.0),
    }
    parts = {name: size * scales.get(name, 1.0) for name, size in sizes.items()}
    if machine.device == "cuda":
        parts["libraries"] = LIBRARIES_BYTES
    return Memory(
        job=job,
        parts={name: size for name, size in parts.items() if size},
        available_bytes=machine.memory_bytes,
    )


def find_pressure(memory: Memory) -> float:
    """GB that are held where that nearly fills the memory; 0 elsewhere."""
    available = memory.available_bytes
    if available is None or memory.total_bytes < NEARLY_FULL * available:
        return 0.0
    return memory.total_bytes / 1e9
