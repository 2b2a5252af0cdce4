"""What the average layer of a model has: linear layers, attention, elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from flopwatch.jobs.layer_parts import Layer, Linear, list_layers, list_mtp_layers
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parameters import count_parameters, require_known

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

COLUMN, ROW, WHOLE = 0.0, 1.0, 2.0
"""How tensor parallelism divides a weight: by its outputs, by its inputs, not at all."""
MOST_LINEARS = 16
"""Kinds of linear layers that a model can have here; those of all further ones are joined."""


class Weight(NamedTuple):
    """A linear layer, or several alike."""

    inputs: float
    outputs: float
    layers: float
    """That have it."""
    split: float
    """COLUMN, ROW or WHOLE."""
    active: float
    """How often a token goes through one of its kind: of experts, the active ones."""
    copies: float
    """Of its kind in a layer: of experts, all."""


class ModelWork(NamedTuple):
    """What a model computes and holds, besides its linear layers, summed over its layers."""

    layers: float
    hidden: float
    rows: float
    head_width: float
    heads_computed: float
    """1, and one more for each module of multi-token prediction."""
    heads: float
    head_dim: float
    pairs: float
    """Of positions that masks leave, times heads, of a sequence in all layers,"""
    scores: float
    """and of all positions."""
    key_width: float
    """Numbers of a token's keys and values in a layer, which context-parallel ranks exchange."""
    scanned: float
    """Multiplications of scans, of a sequence in all layers."""
    stream_forward: float
    """Numbers that a token reads and writes between matmuls, of those that only sequence
    parallelism divides,"""
    stream_backward: float
    inner_forward: float
    """and of those that tensor parallelism divides."""
    inner_backward: float
    block_parameters: float
    """Of all layers, without experts,"""
    expert_parameters: float
    """and of all experts."""
    rest_parameters: float
    """Of embedding, head and what else is outside of layers."""
    expert_layers: float
    routed: float
    """Experts of a token."""


@lru_cache(maxsize=1024)
def list_weights(shape: Shape) -> tuple[Weight, ...]:
    """Of all layers, and of multi-token prediction."""
    found: dict[tuple[float, ...], float] = {}
    for layer in (*list_layers(shape), *list_mtp_layers(shape)):
        for linear in layer.linears:
            key = (
                linear.inputs, linear.outputs, _find_split(linear, shape), linear.active,
                linear.copies,
            )  # fmt: skip
            found[key] = found.get(key, 0.0) + layer.count
    listed = [
        Weight(inputs, outputs, layers, split, active, copies)
        for (inputs, outputs, split, active, copies), layers in found.items()
    ]
    return tuple(listed[: MOST_LINEARS - 1]) + _join(listed[MOST_LINEARS - 1 :])


def _join(weights: Sequence[Weight]) -> tuple[Weight, ...]:
    """As one of the first's inputs with as many weights that a token goes through."""
    if not weights:
        return ()
    first = weights[0]
    work = sum(each.inputs * each.outputs * each.layers * each.active for each in weights)
    return (first._replace(outputs=work / (first.inputs * first.layers * first.active)),)


def _find_split(linear: Linear, shape: Shape) -> float:
    """Projections to narrow states of latent attention, routers and gates are whole on all ranks;
    what leads back to the hidden size is divided by its inputs."""
    if linear.reads == 0 or linear.part in ("mtp", "embedding"):
        return WHOLE
    narrow = (shape.kv_lora_rank or 0) + (shape.qk_rope_head_dim or 0), shape.q_lora_rank
    if linear.part == "qkv":
        return WHOLE if shape.kv_lora_rank and linear.outputs in narrow else COLUMN
    if linear.part == "output" or linear.reads is not None:
        return ROW
    is_back = linear.outputs == shape.hidden_size and linear.part == "state-space"
    return ROW if is_back else COLUMN


@lru_cache(maxsize=1024)
def count_work(shape: Shape, seq_len: int) -> ModelWork:
    require_known(shape)
    layers = (*list_layers(shape), *list_mtp_layers(shape))
    attended = [layer for layer in layers if layer.attention]
    heads = max((layer.attention.heads for layer in attended if layer.attention), default=1)
    head_dim = max((layer.attention.key_dim for layer in attended if layer.attention), default=64)
    total = count_parameters(shape)
    experts = sum(
        layer.count * linear.count_parameters() for layer in layers for linear in layer.experts
    )
    blocks = sum(layer.count * layer.count_parameters() for layer in layers) - experts
    elements = [_count_elements(layer, shape) for layer in layers]
    sums = [
        sum(e[i] * layer.count for e, layer in zip(elements, layers, strict=True)) for i in range(4)
    ]
    return ModelWork(
        layers=sum(layer.count for layer in layers),
        hidden=shape.hidden_size,
        rows=shape.rows,
        head_width=shape.embedding_size or shape.hidden_size,
        heads_computed=1 + (shape.mtp_layers or 0),
        heads=heads,
        head_dim=head_dim,
        pairs=_count_pairs(attended, seq_len, masked=True),
        scores=_count_pairs(attended, seq_len, masked=False),
        key_width=_average_keys(layers),
        scanned=sum(
            layer.count * layer.scan.count_multiplications(seq_len, masked=True)
            for layer in layers
            if layer.scan
        ),
        stream_forward=sums[0],
        stream_backward=sums[1],
        inner_forward=sums[2],
        inner_backward=sums[3],
        block_parameters=blocks,
        expert_parameters=experts,
        rest_parameters=total - blocks - experts,
        expert_layers=sum(layer.count for layer in layers if layer.experts),
        routed=shape.active_experts or 0,
    )


def _count_pairs(layers: Sequence[Layer], seq_len: int, *, masked: bool) -> float:
    """Times heads, and where values are narrower than keys, times the share of both."""
    return sum(
        layer.count
        * layer.attention.heads
        * layer.attention.count_pairs(seq_len, masked=masked)
        * (layer.attention.key_dim + layer.attention.value_dim)
        / (2 * layer.attention.key_dim)
        for layer in layers
        if layer.attention
    )


def _average_keys(layers: Sequence[Layer]) -> float:
    widths = [
        layer.count
        * layer.attention.key_value_heads
        * (layer.attention.key_dim + layer.attention.value_dim)
        for layer in layers
        if layer.attention
    ]
    return sum(widths) / sum(layer.count for layer in layers)


def _count_elements(layer: Layer, shape: Shape) -> tuple[float, float, float, float]:
    """Numbers that a token's way through a layer reads and writes between matmuls, at the least:
    of the residual stream, forward and backward, and of what is inside, likewise. Tokens that go
    to experts are copied there and back."""
    hidden = shape.hidden_size
    halves = sum((layer.attention is not None or layer.scan is not None, _has_feed_forward(layer)))
    routed = sum(each.active for each in layer.experts) / 2 * hidden  # up and down are two
    gate = 1 if shape.is_gated else 0
    inner = sum(
        each.active * each.inputs
        for each in layer.linears
        if each.part == "feed-forward" and each.reads
    )
    scanned = (layer.scan.read_width + layer.scan.written_width) if layer.scan else 0
    return (
        6.0 * halves * hidden + 4 * routed,
        11.5 * halves * hidden + 6 * routed,
        (2.0 + gate) * inner + 3 * scanned,
        (3.0 + 2 * gate) * inner + 6 * scanned,
    )


def _has_feed_forward(layer: Layer) -> bool:
    return any(each.part == "feed-forward" for each in layer.linears)
