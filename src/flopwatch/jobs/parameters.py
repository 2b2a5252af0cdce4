"""How many parameters a model has: the one count that memory, FLOPs, utilisation, communication,
predictions and plans share.

All experts are parameters: each is stored, gathered, reduced and updated, whoever has it. A token
goes through the active ones only, so that FLOPs count those. Rows that pad the vocabulary count,
and a head that is the embedding counts once.
"""

from __future__ import annotations

from typing import Literal, get_args

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape

Part = Literal[
    "embedding", "qkv", "scores", "values", "output", "feed-forward", "head", "padding"
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)


def require_known(shape: Shape) -> None:
    if shape.architecture not in ARCHITECTURES:
        raise UsageError(
            f"what a {shape.architecture!r} computes does not follow from its dimensions alone; "
            f"write it as one of {', '.join(ARCHITECTURES)} with the same dimensions (llama has "
            "key_value_heads, and experts)"
        )


def count_parameters(shape: Shape, *, active: bool = False) -> int:
    """All of them; with `active`, only those experts that a token goes through.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> count_parameters(find_shape("opt-125m"))
    125239296
    """
    weights = count_weights(shape, active=active)
    architecture = ARCHITECTURES[shape.architecture]
    norm = architecture.norm_vectors * shape.hidden_size
    extra = architecture.extra_positions
    return (
        (weights["head"] + weights["padding"]) * (1 if shape.is_tied else 2)
        + (0 if extra is None else (shape.positions + extra) * shape.hidden_size)
        + weights["embedding"]
        + weights["qkv"]
        + weights["output"]
        + weights["feed-forward"]
        + shape.layers * (_count_biases(shape, active=active) + 2 * norm)  # 2: each half has a norm
        + (norm if shape.norm_first else 0)
    )


def count_weights(shape: Shape, *, active: bool = True) -> dict[Part, int]:
    """Of the matmuls in the whole model, without biases: those that a token is multiplied with, or
    without `active`, those of all experts.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> weights = count_weights(find_shape("opt-125m"))
    >>> weights["qkv"], weights["feed-forward"], weights["head"]
    (21233664, 56623104, 38608896)
    """
    require_known(shape)
    hidden, embedding = shape.hidden_size, shape.embedding_size or shape.hidden_size
    experts = _count_experts(shape, active=active)
    return {
        "embedding": 2 * hidden * embedding if shape.embedding_size else 0,
        "qkv": shape.layers * hidden * count_qkv_outputs(shape),
        "scores": 0,
        "values": 0,
        "output": shape.layers * hidden**2,
        "feed-forward": shape.layers
        * (experts * count_expert_weights(shape) + count_router_weights(shape)),
        "head": shape.vocabulary * embedding,
        "padding": shape.padding * embedding,
    }


def count_expert_weights(shape: Shape) -> int:
    """Of one feed-forward part of one block."""
    return (count_up_matrices(shape) + 1) * shape.hidden_size * shape.feed_forward_size


def count_router_weights(shape: Shape) -> int:
    """Of one block."""
    return shape.hidden_size * (shape.experts or 0)


def count_up_matrices(shape: Shape) -> int:
    """That lead to the feed-forward size."""
    return 2 if shape.is_gated else 1


def count_qkv_outputs(shape: Shape) -> int:
    """Of one token in one block."""
    return (shape.heads + 2 * (shape.key_value_heads or shape.heads)) * shape.head_size


def _count_experts(shape: Shape, *, active: bool) -> int:
    return (shape.active_experts if active else shape.experts) or 1


def _count_biases(shape: Shape, *, active: bool) -> int:
    """Of one block's linear layers."""
    if not ARCHITECTURES[shape.architecture].has_biases:
        return 0
    expert = count_up_matrices(shape) * shape.feed_forward_size + shape.hidden_size
    attention = 4 * shape.hidden_size  # of queries, keys, values and the output
    return attention + _count_experts(shape, active=active) * expert
