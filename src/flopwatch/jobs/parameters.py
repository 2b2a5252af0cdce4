"""How many parameters a model has: the one count that memory, FLOPs, utilisation, communication,
predictions and plans share.

All experts are parameters: each is stored, gathered, reduced and updated, whoever has it. A token
goes through the active ones only, so that FLOPs count those. Rows that pad the vocabulary count,
and a head that is the embedding counts once. Modules of multi-token prediction count where
`mtp_layers` asks for them; configurations that mention them do not.
"""

from __future__ import annotations

from flopwatch.errors import UsageError
from flopwatch.jobs.architectures import ARCHITECTURES
from flopwatch.jobs.layer_parts import PARTS, Layer, Part, list_layers, list_mtp_layers
from flopwatch.jobs.model_shapes import Shape

__all__ = [
    "PARTS", "Part", "count_attention_width", "count_expert_parameters", "count_parameters",
    "count_positions", "count_router_weights", "count_up_matrices", "count_weights",
    "list_all_layers", "require_known",
]  # fmt: skip


def require_known(shape: Shape) -> None:
    if shape.architecture not in ARCHITECTURES:
        raise UsageError(
            f"what a {shape.architecture!r} computes does not follow from its dimensions alone; "
            f"write it as one of {', '.join(ARCHITECTURES)} with the same dimensions (llama has "
            "key_value_heads, and experts)"
        )


def list_all_layers(shape: Shape) -> tuple[Layer, ...]:
    """Each kind once, with those of multi-token prediction."""
    require_known(shape)
    return (*list_layers(shape), *list_mtp_layers(shape))


def count_parameters(shape: Shape, *, active: bool = False) -> int:
    """All of them; with `active`, only those experts that a token goes through.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> count_parameters(find_shape("opt-125m"))
    125239296
    """
    layers = list_all_layers(shape)
    known = ARCHITECTURES[shape.architecture]
    embedding = shape.embedding_size or shape.hidden_size
    norm = known.norm_vectors * shape.hidden_size
    return (
        shape.rows * embedding * (1 if shape.is_tied else 2)
        + (shape.rows if known.head_bias else 0)
        + count_positions(shape)
        + (2 * shape.hidden_size * embedding if shape.embedding_size else 0)
        + sum(layer.count * layer.count_parameters(active=active) for layer in layers)
        + norm * (int(shape.norm_first) + int(known.norms_embedding))
    )


def count_expert_parameters(shape: Shape) -> int:
    """Of all experts that expert parallelism divides: not of shared ones."""
    return sum(
        layer.count * linear.count_parameters()
        for layer in list_all_layers(shape)
        for linear in layer.experts
    )


def count_positions(shape: Shape) -> int:
    """Parameters of learned ones; 0 too where it is not known whether there are any."""
    known = ARCHITECTURES.get(shape.architecture)
    extra = None if known is None else known.extra_positions
    return 0 if extra is None else (shape.positions + extra) * shape.hidden_size


def count_weights(shape: Shape, *, active: bool = True) -> dict[Part, int]:
    """Of the matmuls in the whole model, without biases: those that a token is multiplied with, or
    without `active`, those of all experts. Multi-token prediction goes through the head again.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> weights = count_weights(find_shape("opt-125m"))
    >>> weights["qkv"], weights["feed-forward"], weights["head"]
    (21233664, 56623104, 38608896)
    """
    layers = list_all_layers(shape)
    hidden, embedding = shape.hidden_size, shape.embedding_size or shape.hidden_size
    weights: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for layer in layers:
        for each in layer.linears:
            copies = each.active if active else each.copies
            weights[each.part] += layer.count * copies * each.weights
    heads = 1 + (shape.mtp_layers or 0 if active else 0)
    return {
        **weights,
        "embedding": 2 * hidden * embedding if shape.embedding_size else 0,
        "head": heads * shape.vocabulary * embedding,
        "padding": heads * shape.padding * embedding,
    }


def count_router_weights(shape: Shape) -> int:
    """Of one block."""
    return shape.hidden_size * (shape.experts or 0)


def count_up_matrices(shape: Shape) -> int:
    """That lead to the feed-forward size."""
    return 2 if shape.is_gated else 1


def count_attention_width(shape: Shape) -> int:
    """Multiplications of a pair of positions over all layers with attention, for scores and for
    values: 2 L h, where heads are as wide as the hidden size and all layers have attention."""
    return sum(
        layer.count * (layer.attention.key_width + layer.attention.value_width)
        for layer in list_all_layers(shape)
        if layer.attention is not None
    )
