"""What one rank holds of a model that ranks divide, by tensor parallelism or as a pipeline.

Parameters, gradients and the optimizer's state are counted exactly, of the stages and of the parts
of layers that a rank has. A rank's stages keep activations of several micro-batches at once: as
many as the schedule sends forward before the first comes back. Where a parameter does not divide
evenly, the first rank has the larger part, which is the one that is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from flopwatch.jobs.activation_memory import (
    FLOAT,
    Sizes,
    count_buffer_bytes,
    list_block,
    make_embedding,
    make_end,
)
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.parallelism import (
    SCHEDULES,
    UNSHARDED,
    Parallelism,
    count_job_shards,
    divide_layers,
)
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.step_memory import MOMENTS, Stage, find_backward_peak, find_forward_peak
from flopwatch.jobs.training_job import TrainingJob

DIVIDED = (
    "queries", "keys", "values", "attended values", "log-sums of scores", "attention weights",
    "gates", "feed-forward, ", "log-probabilities",
)  # fmt: skip
"""Beginnings of the names of tensors of which a tensor-parallel rank has its heads', or its part of
the width."""
BETWEEN = ("inputs of norms", "results of norms", "statistics of norms", "inputs of blocks")
"""Of those that sequence parallelism divides by tokens."""


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Numbers that a tensor-parallel rank has of each stage."""

    stage: int
    layers: int
    parameters: int


def list_stage_parameters(job: TrainingJob, pipeline_rank: int) -> list[StageParameters]:
    """Of a rank. A tied head that is in another stage than the embedding is a copy.

    >>> job = TrainingJob("small", 128, parallelism=Parallelism(tensor=2, pipeline=2))
    >>> [found.parameters for found in list_stage_parameters(job, 0)]
    [32160768]
    """
    split, shape = job.parallelism, job.shape
    layers = divide_layers(shape.layers, split.stages)
    block, ends = _count_block(shape, split.tensor), _count_ends(shape, split.tensor)
    found = []
    for stage in split.list_stages(pipeline_rank):
        number = len(layers[stage]) * block
        number += ends["first"] if stage == 0 else 0
        number += ends["last"] if stage == split.stages - 1 else 0
        if split.stages == 1 and shape.is_tied:
            number -= ends["head"]
        found.append(StageParameters(stage, len(layers[stage]), number))
    return found


def _count_block(shape: Shape, ranks: int) -> int:
    # Counted as a difference, so that no list of a block's parameters is needed here.
    block = count_parameters(replace(shape, layers=2)) - count_parameters(replace(shape, layers=1))
    known = ARCHITECTURES[shape.architecture]
    # Norms, and biases that are added to sums of what ranks compute.
    whole = (2 * known.norm_vectors + 2 * known.has_biases) * shape.hidden_size
    return (block - whole) // ranks + whole


def _count_ends(shape: Shape, ranks: int) -> Mapping[str, int]:
    known = ARCHITECTURES[shape.architecture]
    rows = ceil(shape.rows / ranks) * shape.hidden_size
    positions = 0 if known.extra_positions is None else shape.positions * shape.hidden_size
    return {
        "first": rows + positions,
        "last": rows + known.norm_vectors * shape.hidden_size,
        "head": rows,
    }


def count_in_flight(split: Parallelism, pipeline_rank: int, micro_batches: int) -> list[int]:
    """Micro-batches of which each of a rank's stages keeps activations where that is most, as
    torch's schedules have them: the one that it computes is among them.

    >>> [count_in_flight(Parallelism(pipeline=4), rank, 8) for rank in range(4)]
    [[4], [3], [2], [1]]
    """
    schedule, stages, ranks = SCHEDULES[split.schedule], split.virtual_stages, split.pipeline
    if schedule.keeps_all:
        found = [micro_batches] * stages
    elif schedule.is_v:
        # Of all ranks but the first, one more goes forward before the first comes back.
        more = split.schedule == "dualpipe-v" and pipeline_rank > 0
        found = [ranks + more, ranks]
    elif stages == 1:
        found = [ranks - pipeline_rank]
    else:
        by_round = micro_batches // max(1, micro_batches // ranks)
        hops = 1 if schedule.splits_backward else 2
        ahead = (stages - 1) * by_round + hops * (ranks - 1 - pipeline_rank) + 1
        rounds, left = divmod(ahead, by_round * stages)
        found = [
            rounds * by_round + max(0, min(by_round, left - place * by_round))
            for place in range(stages)
        ]
        # What gradients of weights need is there until they come.
        found[-1] += pipeline_rank if schedule.splits_backward else 0
    return [min(micro_batches, number) for number in found]


def estimate_divided(job: TrainingJob, pipeline_rank: int, *, on_host: bool) -> dict[str, int]:
    """Bytes by part, where they are most."""
    split, sizes = job.parallelism, Sizes(job, on_host)
    stages = list_stage_parameters(job, pipeline_rank)
    chunks = [_list_chunk(sizes, found.stage, found.layers) for found in stages]
    whole_bytes = sum(found.parameters for found in stages) * sizes.parameter_bytes
    shards = 1 if job.sharding in (*UNSHARDED, "zero1") else count_job_shards(split)
    own_bytes = ceil(whole_bytes / shards)
    in_flight = [1]
    if split.pipeline > 1:
        in_flight = count_in_flight(split, pipeline_rank, job.grad_accum)
    kept_bytes = [sum(part.kept_bytes for part in chunk) for chunk in chunks]
    held_bytes = sum(number * kept for number, kept in zip(in_flight, kept_bytes, strict=True))
    # Where some have come back, gradients are there; else they grow meanwhile.
    moments = [
        (held_bytes - kept + moment.activation_bytes, moment.gradient_bytes, moment.temporary_bytes)
        for chunk, kept in zip(chunks, kept_bytes, strict=True)
        for moment in (find_forward_peak(chunk), find_backward_peak(chunk))
    ]
    activations, growing, temporary = max(moments, key=sum)
    if sum(in_flight) < job.grad_accum * len(chunks):
        activations, _, temporary = max(moments, key=lambda moment: moment[0] + moment[2])
        growing = whole_bytes
    return {
        "parameters": own_bytes,
        "buffers": len(chunks) * count_buffer_bytes(sizes),
        "optimizer state": MOMENTS[job.optimizer] * own_bytes,
        "activations": max(0, activations),
        # Sharded ones are whole until they are reduced: in a pipeline, when all have gone back.
        "gradients": growing,
        "temporary": temporary,
        "buckets": whole_bytes if job.sharding == "ddp" else 0,
        "gathered parameters": whole_bytes if shards > 1 else 0,
        "sent between stages": _count_sent_bytes(sizes, pipeline_rank, in_flight),
    }


def _list_chunk(sizes: Sizes, stage: int, layers: int) -> list[Stage]:
    """The parts of one stage, as one rank has them."""
    split = sizes.job.parallelism
    start = [make_embedding(sizes)] if stage == 0 else []
    end = make_end(sizes) if stage == split.stages - 1 else []
    parts = [*start, *(layers * list_block(sizes, has_experts=False)), *end]
    return [_divide(part, sizes) for part in parts]


def _divide(part: Stage, sizes: Sizes) -> Stage:
    split = sizes.job.parallelism
    ranks = split.tensor
    if ranks == 1:
        return part
    names = (*DIVIDED, *BETWEEN) if split.sequence else DIVIDED
    kept = [
        replace(tensor, shape=(*tensor.shape[:-1], ceil(tensor.shape[-1] / ranks)))
        if tensor.name.startswith(names)
        else tensor
        for tensor in part.kept
    ]
    is_norm = "norm" in part.name
    shared = ranks if split.sequence or not is_norm else 1
    # What ranks add up, or gather, is whole for a moment; of divided logits, their exponentials are
    # there until they are added up.
    whole_bytes = 0 if is_norm else sizes.stream
    if part.name == "loss":
        logits = sizes.tensor("", sizes.shape.rows, element_bytes=FLOAT)
        whole_bytes = logits.size_bytes // ranks
    return replace(
        part,
        kept=kept,
        gradient_bytes=part.gradient_bytes if is_norm else part.gradient_bytes // ranks,
        forward_bytes=part.forward_bytes // shared + whole_bytes,
        cached_bytes=part.cached_bytes // ranks,
        backward_bytes=part.backward_bytes // shared + whole_bytes,
    )


def _count_sent_bytes(sizes: Sizes, pipeline_rank: int, in_flight: Sequence[int]) -> int:
    """Torch has a buffer for every micro-batch that a stage gets, of activations and of gradients,
    and keeps what it gives until it comes back: of the last stage, logits. What the first norm
    keeps is in such a buffer already."""
    split = sizes.job.parallelism
    if split.pipeline == 1:
        return 0
    one = sizes.stream // (split.tensor if split.sequence else 1)
    logits = sizes.count(sizes.shape.rows) // split.tensor
    sent_bytes = 0
    for stage, each in zip(split.list_stages(pipeline_rank), in_flight, strict=True):
        is_last = stage == split.stages - 1
        sent_bytes += 0 if stage == 0 else (sizes.job.grad_accum - each) * one
        sent_bytes += each * logits if is_last else (sizes.job.grad_accum + each) * one
    return sent_bytes
