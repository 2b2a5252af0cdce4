"""What a rank of a divided model holds, for each pipeline stage; the fullest decides.

    parameters         of the stage's layers and ends, divided by tensor and expert parallelism, in
                       the dtype of matmuls, and with `full` and `hybrid` by sharding
    gradients          of the same numbers, with zero2 and more divided by sharding
    optimizer state    two moments, and weights in 32 bits where they are not kept so anyway; with
                       zero1 and more divided by sharding
    activations        what each layer keeps for the backward pass: results of linear layers that
                       divide their outputs, inputs of those that divide their inputs, and four
                       times the hidden state, which sequence parallelism divides; scores, where
                       attention is plain. With full recomputation, the hidden state alone. Times
                       the micro-batches that are on their way: of the first stage as many as there
                       are stages, with virtual stages somewhat more, with GPipe all of a step
    temporary          three times a layer: its activations, their gradients and workspaces; or of
                       the last stage, logits in 16 and 32 bits
    gathered           of sharded parameters two layers, and what is outside of layers
    libraries          1 GB, and as much for each kind of parallelism that has its own collectives
    fragmentation      a tenth of what is held throughout

The last three were chosen by 55 jobs of the search before BLOOM that published their memory, with
what the driver holds.

It is simpler than what `jobs.rank_memory` says of our own transformer in data parallelism, which is
exact for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from flopwatch.prediction.job_arrays import JobArrays, count_rank_parameters, count_stage_layers
from flopwatch.prediction.model_work import COLUMN, ROW, WHOLE

if TYPE_CHECKING:
    from flopwatch.prediction.job_arrays import Array

STREAMS = 4
"""Hidden states of a layer: inputs of both norms, and of attention and feed-forward."""
SELECTIVE_STREAMS = 2
SCORE_BYTES = 5
"""Of a score of plain attention: the softmax and its dropout in 16 bits, and a mask."""
LOGIT_BYTES = 10
"""Of a logit: in 16 bits, in 32, and its gradient."""
MASTER_BYTES, MOMENT_BYTES = 4, 8
AT_ONCE = 2
"""Layers that are gathered at a time."""
LIBRARIES_BYTES = 1.0e9
"""Of CUDA and NCCL: a context, kernels, buffers;"""
GROUP_BYTES = 1.0e9
"""and for each kind of parallelism that has collectives of its own."""
LAYERS_AT_WORK = 3
FRAGMENTED = 0.1


def estimate_stage_memory(jobs: JobArrays) -> dict[str, Array]:
    """Bytes by part, on the fullest rank of each job."""
    import numpy as np

    common, experts = count_rank_parameters(jobs)
    numbers = common + experts
    alike = jobs.count_alike()
    group = np.maximum(jobs.shard_group, 1.0)
    divided = common / group + experts / np.minimum(group, alike)
    is_whole = jobs.gathers == 2
    fully = np.where((jobs.is_sharded > 0) & is_whole, divided, numbers)
    gradients = np.where(jobs.is_sharded > 0, divided, numbers)
    states = np.where((jobs.is_sharded > 0) | (jobs.is_zero1 > 0), divided, numbers)
    state_bytes = np.where(
        jobs.parameter_bytes > jobs.element_bytes,
        MASTER_BYTES + MOMENT_BYTES,
        2 * jobs.parameter_bytes,
    )
    layer, whole = count_kept(jobs)
    one = LAYERS_AT_WORK * whole
    first, middle, last = count_stage_layers(jobs)
    waiting = _count_waiting(jobs)
    tokens = jobs.micro_batch * jobs.seq_len / jobs.context
    logits = tokens * jobs.get("rows") / jobs.tensor * LOGIT_BYTES
    is_alone = jobs.pipeline == 1
    held = np.where(is_alone, jobs.get("layers"), first) * waiting
    drained = last
    if np.any(jobs.offloads_activations):
        is_away = jobs.offloads_activations > 0
        held, drained = (np.where(is_away, np.minimum(n, AT_ONCE), n) for n in (held, drained))
    filled, drained = held * layer, drained * layer
    is_last = ~is_alone & (drained + np.maximum(logits, one) > filled + one)
    activations = np.where(is_last, drained, filled)
    temporary = np.where(is_alone | is_last, np.maximum(logits, one), one)
    per_layer = numbers / np.maximum(middle, 1.0)
    rest = jobs.get("rest_parameters") / jobs.tensor
    gathered = np.where(
        jobs.is_sharded > 0,
        np.where(is_whole, np.minimum(AT_ONCE * per_layer + rest, numbers), numbers)
        * jobs.gathered_bytes,
        0.0,
    )
    groups = sum(
        (each > 1) * 1.0 for each in (jobs.tensor, jobs.context, jobs.expert, jobs.pipeline)
    )
    throughout = {
        "parameters": fully * jobs.element_bytes,
        "gradients": gradients * jobs.reduced_bytes,
        "optimizer state": np.where(jobs.offloads_optimizer > 0, 0.0, states * state_bytes),
    }
    whole_bytes: Any = {
        **throughout,
        "activations": activations,
        "temporary": temporary,
        "gathered parameters": gathered,
        "libraries": LIBRARIES_BYTES + GROUP_BYTES * groups,
        "fragmentation": FRAGMENTED * sum(throughout.values()),
    }
    return cast("dict[str, Array]", whole_bytes)


def count_kept(jobs: JobArrays) -> tuple[Array, Array]:
    """Bytes that an average layer keeps of a micro-batch, and what it would keep without
    recomputation, which is there for a moment."""
    import numpy as np

    tokens = jobs.micro_batch * jobs.seq_len / jobs.context
    tensor = jobs.tensor[:, None]
    share = np.where(jobs.active > 0, jobs.weight_layers / jobs.get("layers")[:, None], 0.0)
    kept = np.where(jobs.split == COLUMN, jobs.outputs / tensor, 0.0)
    kept = kept + np.where(jobs.split == ROW, jobs.inputs / tensor, 0.0)
    kept = kept + np.where(jobs.split == WHOLE, jobs.outputs, 0.0)
    inside = np.sum(share * kept * np.maximum(jobs.active, 1.0), axis=1)
    stream = jobs.get("hidden") / np.where(jobs.is_sequence > 0, jobs.tensor, 1.0)
    routed = jobs.get("routed") * jobs.get("expert_layers") / jobs.get("layers")
    scores = np.where(
        (jobs.is_plain > 0) & (jobs.is_selective == 0),
        jobs.micro_batch * jobs.get("scores") / jobs.get("layers") / (jobs.tensor * jobs.context),
        0.0,
    )
    streams = np.where(jobs.is_selective > 0, SELECTIVE_STREAMS, STREAMS) + routed
    everything = tokens * (inside + streams * stream) * jobs.element_bytes + SCORE_BYTES * scores
    narrow = tokens * stream * jobs.element_bytes
    return jobs.is_full * narrow + (1 - jobs.is_full) * everything, everything


def _count_waiting(jobs: JobArrays) -> Array:
    """Micro-batches whose activations the first stage holds."""
    import numpy as np

    stages, chunks = jobs.pipeline, jobs.virtual_stages
    interleaved = stages + np.where(chunks > 1, (stages - 1) / chunks, 0.0)
    return np.where(jobs.is_gpipe > 0, jobs.grad_accum, np.minimum(jobs.grad_accum, interleaved))
