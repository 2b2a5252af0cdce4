"""What one rank of a training job holds in memory, predicted from what a single process would.

A rank has its part of the parameters and of the optimizer's state. Where models are sharded, it
gathers what it computes with: all that is outside of blocks, from the first use to the last, and
blocks one after the other (two are there at once, while one takes over from the next) or, if they
stay until the backward pass, all of them. Gradients are whole until they are reduced, when a copy
of them is sent. From the second micro-batch of a step on, those of the ones before it are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from flopwatch.jobs.activation_memory import estimate_step
from flopwatch.jobs.divided_memory import estimate_divided
from flopwatch.jobs.layer_parts import list_layers
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parallelism import UNSHARDED, count_shards, require_data_only
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.step_memory import MOMENTS, Moment, StepMemory
from flopwatch.jobs.training_job import Printed, TrainingJob, require_kept

GIB = 2.0**30
AT_ONCE = 2
"""Blocks that are gathered at a time."""


class EstimateStep(Protocol):
    """What a process with all of the model holds."""

    def __call__(self, job: TrainingJob, *, on_host: bool) -> StepMemory: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Parameters, by where they are."""

    block: int
    """Of the largest one."""
    rest: int
    """Outside of blocks."""
    total: int
    layers: int


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Memory(Printed):
    """What one rank of a job holds where that is most."""

    job: TrainingJob
    parts: Mapping[str, float]
    """Bytes."""
    available_bytes: float | None = None
    """None: not known."""
    step: StepMemory | None = None
    """In detail, where a rank has all of the model."""
    largest_micro_batch: int | None = None
    """That fits at the job's sequence length; 0: none, None: not asked for."""
    largest_seq_len: int | None = None
    """That fits at the job's micro-batch; likewise."""

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool | None:
        return None if self.available_bytes is None else self.total_bytes <= self.available_bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": self.job.to_dict(),
            "parts": dict(self.parts),
            "total_bytes": self.total_bytes,
            "available_bytes": self.available_bytes,
            "fits": self.fits,
            "step": None if self.step is None else self.step.to_dict(),
            "largest_micro_batch": self.largest_micro_batch,
            "largest_seq_len": self.largest_seq_len,
        }

    def __str__(self) -> str:
        """
        >>> job = TrainingJob("small", 128, micro_batch=4, precision="fp32")
        >>> print(Memory(job=job, parts={"parameters": 2**30}, available_bytes=2**32))
        1.00 GiB on each rank, fits into 4.00 GiB: small, seq_len 128, micro-batch 4, 1 rank, fp32
          parameters           1.00 GiB
        """
        verdict = ""
        if self.available_bytes is not None:
            fits = "fits" if self.fits else "does not fit"
            verdict = f", {fits} into {self.available_bytes / GIB:.2f} GiB"
        lines = [
            f"{self.total_bytes / GIB:.2f} GiB on each rank{verdict}: {self.job}",
            *(f"  {name:<20} {size / GIB:.2f} GiB" for name, size in self.parts.items() if size),
        ]
        if self.largest_micro_batch is not None:
            lines.append(f"  largest micro-batch that fits: {self.largest_micro_batch:,}")
        if self.largest_seq_len is not None:
            lines.append(f"  longest sequence that fits: {self.largest_seq_len:,} tokens")
        return "\n".join(lines)


def estimate_rank_memory(
    job: TrainingJob, *, on_host: bool = False, estimate: EstimateStep = estimate_step
) -> dict[str, int]:
    """Bytes by part, on accelerators unless ranks compute on their host; of a pipeline, those of
    the rank that holds most."""
    require_kept(job, "the memory estimate")
    split = job.parallelism
    if split.model_ranks > 1 and split.context == 1 and split.expert == 1 and job.shape.is_ours:
        ranks = [estimate_divided(job, rank, on_host=on_host) for rank in range(split.pipeline)]
        return max(ranks, key=lambda parts: sum(parts.values()))
    require_data_only(replace(split, sharding="none", expert=1), "the memory estimate")
    parameters = job.parameters
    job = keep_own_experts(job)
    if job.sharding in (*UNSHARDED, "zero1"):
        return _estimate_whole(estimate(job, on_host=on_host), job)
    # Gathered in 16 bits under autocast, so that what is computed from them is too.
    narrow = replace(job, precision="bf16") if job.arithmetic.is_autocast else job
    per_node = split.ranks_per_node or job.ranks
    shards = count_shards(job.sharding, split.data, max(1, per_node // split.model_ranks))
    own_bytes = parameters * job.arithmetic.parameter_bytes // shards
    return _estimate_shards(estimate(narrow, on_host=on_host), job, own_bytes)


def keep_own_experts(job: TrainingJob) -> TrainingJob:
    """With as many experts as a rank has where ranks divide them. It computes as many rows as
    without: on average, its experts get those of the other ranks."""
    experts, ranks = job.shape.experts, job.parallelism.expert
    if experts is None or ranks == 1:
        return job
    return replace(job, model=replace(job.shape, experts=max(1, experts // ranks)))


def estimate_all_ranks(job: TrainingJob, *, on_host: bool = False) -> list[dict[str, int]]:
    """By rank: those of one stage of a pipeline hold as much."""
    split = job.parallelism
    if split.pipeline == 1 or not job.shape.is_ours:
        return [estimate_rank_memory(job, on_host=on_host)] * job.ranks
    require_data_only(replace(split, pipeline=1, virtual_stages=1, tensor=1, sequence=False,
                              schedule="1f1b", sharding="none"), "the memory estimate")  # fmt: skip
    by_stage = [estimate_divided(job, rank, on_host=on_host) for rank in range(split.pipeline)]
    return [parts for parts in by_stage for _ in range(job.ranks // split.pipeline)]


def _count_weights_by_place(shape: Shape) -> Weights:
    layers, total = list_layers(shape), count_parameters(shape)
    blocks = sum(layer.count * layer.count_parameters() for layer in layers)
    block = max(layer.count_parameters() for layer in layers)
    return Weights(block=block, rest=total - blocks, total=total, layers=shape.layers)


def _estimate_whole(step: StepMemory, job: TrainingJob) -> dict[str, int]:
    """Gradients of earlier micro-batches stay; DDP has its buckets for good, too, in which the
    gradients of the last one arise."""
    if job.sharding == "none" and job.grad_accum == 1:
        return step.parts()
    moment = max(
        step.forward,
        step.backward,
        key=lambda moment: moment.activation_bytes + moment.temporary_bytes,
    )
    shards = job.ranks if job.sharding == "zero1" else 1
    return {
        **step.parts(),
        "optimizer state": step.optimizer_bytes // shards,
        "activations": moment.activation_bytes,
        "gradients": step.gradient_bytes if job.grad_accum > 1 else 0,
        "temporary": moment.temporary_bytes,
        "buckets": step.gradient_bytes if job.sharding in ("ddp", "zero1") else 0,
    }


def _estimate_shards(step: StepMemory, job: TrainingJob, own_bytes: int) -> dict[str, int]:
    weights = _count_weights_by_place(job.shape)
    moments = [_divide(moment, weights, job, own_bytes) for moment in (step.forward, step.backward)]
    most: dict[str, int] = max(moments, key=lambda parts: sum(parts.values()))
    return {
        "parameters": own_bytes,
        "buffers": step.buffer_bytes,
        "optimizer state": MOMENTS[job.optimizer] * own_bytes,
        **most,
    }


def _divide(moment: Moment, weights: Weights, job: TrainingJob, own_bytes: int) -> dict[str, int]:
    """What a rank holds at a moment at which a single process would hold that."""
    element_bytes, parameter_bytes = job.arithmetic.element_bytes, job.arithmetic.parameter_bytes
    # zero2 leaves blocks gathered until the backward pass has used them.
    gathered = weights.rest + min(AT_ONCE, weights.layers) * weights.block
    if job.sharding == "zero2":
        gathered = weights.total
    # Gradients of one block and of what is outside of blocks are whole until they are reduced; what
    # is sent is a copy in the parameters' dtype.
    whole_bytes = min(moment.gradient_bytes, (weights.rest + weights.block) * element_bytes)
    sent_bytes = max(weights.rest, weights.block) * parameter_bytes if whole_bytes else 0
    # The share of all gradients that a single process would have by then is reduced already; of
    # earlier micro-batches, all are.
    done = 1.0
    if job.grad_accum == 1:
        done = moment.gradient_bytes / (weights.total * element_bytes)
    return {
        "activations": moment.activation_bytes,
        "gradients": round(done * own_bytes),
        "temporary": moment.temporary_bytes,
        "gathered parameters": gathered * element_bytes,
        "whole gradients": whole_bytes + sent_bytes,
    }
