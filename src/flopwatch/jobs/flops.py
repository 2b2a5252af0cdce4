"""What a training step computes and moves, by part of the model.

The parts are those of a decoder:

    embedding       the lookup, which computes nothing, and OPT's projections to and from the
                    hidden size
    qkv             queries, keys and values
    scores          queries with keys
    values          scores with values
    output          attention's output layer
    state-space     the linear layers of state-space and linear-attention layers
    scan            products of such a layer: within chunks of positions, and with the state
    feed-forward    its two or three matrices; of experts those that a token goes through, shared
                    ones and the router
    mtp             projections of multi-token prediction, whose layers and logits are part of the
                    others
    head            the logits of every position
    padding         those rows of the head that stand for no token

FLOPs are those of the matmuls, 2 for a multiplication and its addition. Norms, activation
functions, softmax, lookups and biases are left out, as is usual: they cost time, but next to no
arithmetic. Nor does it count what a fused attention kernel recomputes of the scores inside its own
backward pass. A tied head is computed like any other. Of state-space layers, the convolution, the
decay between chunks and triangular systems are left out, which are no matmuls.

Recomputation (activation checkpointing) is what the backward pass repeats of the forward pass:

    none         nothing
    full         all blocks, but for the last matmul of each: its result is only added to, which
                 needs no result, and torch stops before it
    selective    results of linear layers are kept; the rest of a block is recomputed: norms,
                 activation functions, scores and values
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flopwatch.errors import Unsupported
from flopwatch.jobs.layer_parts import PARTS, Layer, Linear, Part
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parallelism import count_job_shards
from flopwatch.jobs.parameters import (
    count_expert_parameters,
    count_positions,
    count_weights,
    list_all_layers,
)
from flopwatch.jobs.training_job import Printed, TrainingJob

BLOCK: tuple[Part, ...] = (
    "qkv", "scores", "values", "output", "state-space", "scan", "feed-forward", "mtp"
)  # fmt: skip
"""What blocks have."""
ATTENTION: tuple[Part, ...] = ("scores", "values")
"""Matmuls of two activations: no weights, and half of them masked."""
SELECTIVE: tuple[Part, ...] = (*ATTENTION, "scan")
"""What selective recomputation repeats."""
OF_ATTENTION: tuple[Part, ...] = ("qkv", *ATTENTION, "output", "state-space", "scan")
"""What records call attention."""
GRAD_ACCUM = "grad_accum"
"""The phase of a step that has all micro-batches but the last."""
FORWARD_BACKWARD = "forward-backward"
"""The phase of a step in which a pipeline's schedule does both passes of all micro-batches, as
Megatron-LM calls it."""
FORWARD, BACKWARD = "forward/feed-forward", "backward/feed-forward"
"""The feed-forward layers as regions of a training step."""
ADAMW_FLOPS = 12
"""For one parameter: two moments, their corrections, a root, a division, decay and update."""
OPTIMIZER_FLOPS = {"adamw": ADAMW_FLOPS, "adamw-unfused": ADAMW_FLOPS, "sgd": 2}
"""For one parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """What a step computes, or moves, in one part of the model."""

    forward: int
    backward: int
    recomputed: int = 0
    """Of the forward pass, again in the backward pass."""

    @property
    def total(self) -> int:
        return self.forward + self.backward + self.recomputed


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What one forward pass through a part must read and write, in numbers."""

    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    rows: int = 0
    """Weights that are looked up: the backward pass only writes their gradients."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            weights=self.weights + other.weights,
            inputs=self.inputs + other.inputs,
            outputs=self.outputs + other.outputs,
            rows=self.rows + other.rows,
        )


def count_flops_by_part(job: TrainingJob, *, causal: bool = False) -> dict[Part, Passes]:
    """Of one micro-batch. Scores, values and scans count in full, as a plain implementation
    computes them, or with `causal` only where masks leave something: for S (S + 1) / 2 of S * S
    pairs of positions, and for fewer where attention has a window or chunks.

    The backward pass is twice the forward one: each matmul has two operands, and the gradient of
    each is a matmul of the same size.

    >>> parts = count_flops_by_part(TrainingJob("opt-125m", 512))
    >>> parts["feed-forward"].forward, parts["head"].backward
    (57982058496, 79071019008)
    """
    layers, weights = list_all_layers(job.shape), count_weights(job.shape)
    # 2: multiply and add.
    once, token = 2 * job.micro_batch, 2 * job.micro_batch_tokens
    products = _count_products(layers, job.seq_len, causal=causal)
    forward = {
        part: once * products[part] if part in products else token * weights[part] for part in PARTS
    }
    last = {part: token * numbers for part, numbers in _count_last_weights(layers).items()}
    again = _choose_recomputed(forward, last, job)
    return {
        part: Passes(forward=count, backward=2 * count, recomputed=again.get(part, 0))
        for part, count in forward.items()
    }


def _count_products(layers: Sequence[Layer], tokens: int, *, causal: bool) -> dict[Part, int]:
    """Multiplications of activations with activations, in one sequence. A pair of positions costs a
    product as long as a head's keys in each head for scores, and as its values for values."""
    products: dict[Part, int] = dict.fromkeys(SELECTIVE, 0)
    for layer in layers:
        attention, scan = layer.attention, layer.scan
        if attention is not None:
            pairs = layer.count * attention.count_pairs(tokens, masked=causal)
            products["scores"] += pairs * attention.key_width
            products["values"] += pairs * attention.value_width
            everywhere = replace(attention, window=None).count_pairs(tokens, masked=causal)
            products["scores"] += layer.count * everywhere * attention.index_width
        if scan is not None:
            products["scan"] += layer.count * scan.count_multiplications(tokens, masked=causal)
    return products


def _list_last(layers: Sequence[Layer]) -> list[tuple[int, Linear]]:
    """The last matmuls of layers whose results are only added to, so that full recomputation leaves
    them out, and how many there are."""
    return [(layer.count, layer.linears[-1]) for layer in layers if not layer.keeps_last]


def _count_last_weights(layers: Sequence[Layer]) -> dict[Part, int]:
    last: dict[Part, int] = {}
    for count, linear in _list_last(layers):
        last[linear.part] = last.get(linear.part, 0) + count * linear.weights
    return last


def count_bytes_by_part(job: TrainingJob) -> dict[Part, Passes]:
    """That a micro-batch must move between memory and the processor.

    A lower bound: every matmul reads its operands once and writes its result once, however large
    they are, and everything between matmuls (norms, activation functions, softmax, residuals, the
    loss) is done on the way and moves nothing. Scores never reach memory. The backward pass reads
    weights, inputs and the gradient of the result, and writes the gradients of weights and inputs.
    Of the embedding, a row is read for every token and its gradient written. Of experts, as many
    are read as tokens can reach. Weights and their gradients have the parameters' dtype, all else
    that of activations. Copies for autocast and the optimizer are left out.
    """
    weight_bytes, number_bytes = job.arithmetic.parameter_bytes, job.arithmetic.element_bytes

    def measure(traffic: Traffic) -> int:
        numbers = traffic.inputs + traffic.outputs
        return (traffic.weights + traffic.rows) * weight_bytes + numbers * number_bytes

    moved = _count_traffic(job.shape, job.micro_batch, job.seq_len)
    forward = {part: measure(traffic) for part, traffic in moved.items()}
    backward = {
        part: (2 * t.weights + t.rows) * weight_bytes + (2 * t.inputs + t.outputs) * number_bytes
        for part, t in moved.items()
    }
    last: dict[Part, int] = {}
    for count, linear in _list_last(list_all_layers(job.shape)):
        size_bytes = measure(_count_linear(linear, count, job.micro_batch_tokens))
        last[linear.part] = last.get(linear.part, 0) + size_bytes
    again = _choose_recomputed(forward, last, job)
    return {
        part: Passes(forward=forward[part], backward=backward[part], recomputed=again.get(part, 0))
        for part in PARTS
    }


def spread_by_dtype(parts: Mapping[Part, Passes], dtype: str) -> dict[str, dict[str, float]]:
    """The FLOPs of a step as records have them: by phase and dtype, and those of parts inside, of
    which ``attention`` is several together. What is recomputed counts in the backward pass. All
    matmuls of a step have one `dtype`."""
    counts: dict[str, dict[str, float]] = {}
    for phase in ("forward", "backward"):
        done = {
            part: passes.forward if phase == "forward" else passes.backward + passes.recomputed
            for part, passes in parts.items()
        }
        attention = sum(done[part] for part in OF_ATTENTION)
        inside = {f"{phase}/{part}": count for part, count in done.items() if count}
        whole = {phase: sum(done.values()), f"{phase}/attention": attention}
        counts |= {key: {dtype: float(count)} for key, count in {**whole, **inside}.items()}
    return counts


def count_micro_batch_flops(job: TrainingJob) -> dict[str, dict[str, float]]:
    """Of one micro-batch on one rank, and an update of all parameters: by phase and dtype, and of
    parts of phases. What is recomputed counts in the backward pass. All layers are the model's own.

    >>> job = TrainingJob("small", 128, micro_batch=4, precision="fp32", recompute="full")
    >>> flops = count_micro_batch_flops(job)
    >>> round(flops["backward"]["float32"] / flops["forward"]["float32"], 2)
    2.71
    """
    updates = float(OPTIMIZER_FLOPS[job.optimizer] * job.parameters)
    return {
        **spread_by_dtype(count_flops_by_part(job), job.arithmetic.matmul_dtype),
        "optimizer": {job.arithmetic.dtype: updates},
    }


def spread_flops(job: TrainingJob, forward: float, parameters: int) -> dict[str, dict[str, float]]:
    """The same where only the forward pass is known."""
    matmuls = job.arithmetic.matmul_dtype
    return {
        "forward": {matmuls: float(forward)},
        "backward": {matmuls: 2.0 * forward},
        "optimizer": {job.arithmetic.dtype: float(OPTIMIZER_FLOPS[job.optimizer] * parameters)},
    }


def scale_to_step(
    job: TrainingJob, once: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """From one micro-batch to a step of all ranks. The phase `grad_accum` has both passes of all
    micro-batches but the last, and that of a pipeline's schedule those of all; the optimizer works
    on every copy of a parameter, of which there is one where it is sharded among all ranks; expert
    parallelism divides those of experts."""
    split = job.parallelism
    flops = {phase: scale(counts, split.data) for phase, counts in once.items()}
    if not flops:
        return flops
    if split.pipeline > 1:
        flops = _join_passes(flops, job.grad_accum)
    elif job.grad_accum > 1:
        both = (flops["forward"], flops["backward"])
        dtypes = dict.fromkeys(dtype for counts in both for dtype in counts)
        flops[GRAD_ACCUM] = {
            dtype: (job.grad_accum - 1) * sum(counts.get(dtype, 0.0) for counts in both)
            for dtype in dtypes
        }
    try:
        shards = count_job_shards(split)
    except Unsupported:  # which it is found to be when it is built
        shards = split.data
    # What context-parallel ranks have in common is sharded among them, too, or else copied.
    copies = split.data / shards * (split.context if shards == 1 else 1)
    if split.expert > shards:
        divided = count_expert_parameters(job.shape) / job.parameters
        copies *= 1 - divided + divided * shards / split.expert
    flops["optimizer"] = scale(once["optimizer"], copies)
    return flops


def _join_passes(
    flops: Mapping[str, Mapping[str, float]], micro_batches: int
) -> dict[str, dict[str, float]]:
    """Of both passes, and of parts inside them, as those of one phase."""
    joined: dict[str, dict[str, float]] = {}
    for key, counts in flops.items():
        phase, slash, part = key.partition("/")
        both = joined.setdefault(f"{FORWARD_BACKWARD}{slash}{part}", {})
        if phase in ("forward", "backward"):
            for dtype, count in counts.items():
                both[dtype] = both.get(dtype, 0.0) + micro_batches * count
    return {key: counts for key, counts in joined.items() if counts}


def scale(counts: Mapping[str, float], factor: float) -> dict[str, float]:
    return {dtype: count * factor for dtype, count in counts.items()}


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class StepFlops(Printed):
    """Of one training step over all ranks."""

    job: TrainingJob
    phases: Mapping[str, Mapping[str, float]]
    """By phase and dtype; a key ``phase/part`` is a part of its phase, already counted there."""
    parts: Mapping[Part, Passes]
    """Of one micro-batch on one rank, by part of the model; empty where they are not known."""
    parameters: int | None
    """None: not known."""

    @property
    def total(self) -> float:
        return sum(
            count
            for phase, counts in self.phases.items()
            if "/" not in phase
            for count in counts.values()
        )

    @property
    def per_token(self) -> float:
        return self.total / self.job.tokens_per_step

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": self.job.to_dict(),
            "parameters": self.parameters,
            "total_flops": self.total,
            "flops_per_token": self.per_token,
            "phases": {phase: dict(counts) for phase, counts in self.phases.items()},
            "parts": {part: asdict(passes) for part, passes in self.parts.items()},
        }

    def __str__(self) -> str:
        lines = [
            f"{self.total:.4g} FLOPs a step ({self.per_token:.4g} a token): {self.job}",
            *(
                f"  {phase:<12} {sum(counts.values()):.4g}"
                for phase, counts in self.phases.items()
                if "/" not in phase
            ),
        ]
        return "\n".join(lines)


def _choose_recomputed(
    forward: Mapping[Part, int], last: Mapping[Part, int], job: TrainingJob
) -> dict[Part, int]:
    """`last` is the share of the last matmuls of the blocks."""
    if job.recompute == "selective":
        return {part: forward[part] for part in SELECTIVE}
    if job.recompute == "none":
        return {}
    whole = {part: forward[part] - last.get(part, 0) for part in BLOCK}
    return {part: round(job.recomputed_share * count) for part, count in whole.items()}


def _count_traffic(shape: Shape, sequences: int, tokens: int) -> dict[Part, Traffic]:
    all_tokens, weights = sequences * tokens, count_weights(shape)
    embedding = shape.embedding_size or shape.hidden_size
    projected = shape.hidden_size + embedding if shape.embedding_size else 0
    positions = tokens * shape.hidden_size if count_positions(shape) else 0
    heads = 1 + (shape.mtp_layers or 0)
    return {
        **_count_layer_traffic(list_all_layers(shape), all_tokens),
        "embedding": Traffic(
            rows=all_tokens * embedding + positions,
            weights=weights["embedding"],
            inputs=all_tokens * projected,
            outputs=all_tokens * (embedding + projected),
        ),
        "head": Traffic(
            weights=weights["head"],
            inputs=heads * all_tokens * embedding,
            outputs=heads * all_tokens * shape.vocabulary,
        ),
        # The head reads its input for all of its rows together.
        "padding": Traffic(
            weights=weights["padding"], inputs=0, outputs=heads * all_tokens * shape.padding
        ),
    }


def _count_layer_traffic(layers: Sequence[Layer], all_tokens: int) -> dict[Part, Traffic]:
    found: dict[Part, Traffic] = dict.fromkeys(PARTS, Traffic())
    for layer in layers:
        for linear in layer.linears:
            found[linear.part] += _count_linear(linear, layer.count, all_tokens)
        through = layer.count * all_tokens
        if (attention := layer.attention) is not None:
            shared = attention.key_value_heads
            keys, values = shared * attention.key_dim, shared * attention.value_dim
            found["scores"] += Traffic(inputs=through * (attention.key_width + keys))
            found["values"] += Traffic(
                inputs=through * values, outputs=through * attention.value_width
            )
        if (scan := layer.scan) is not None:
            found["scan"] += Traffic(
                inputs=through * scan.read_width, outputs=through * scan.written_width
            )
    return found


def _count_linear(linear: Linear, layers: int, all_tokens: int) -> Traffic:
    """Of experts, as many are read as tokens can reach."""
    reached = min(linear.copies, all_tokens * linear.active)
    through = layers * all_tokens * linear.active
    return Traffic(
        weights=layers * reached * linear.weights,
        inputs=through * (linear.inputs if linear.reads is None else linear.reads),
        outputs=through * linear.outputs,
    )
