"""Parameters and floating-point operations of a model, from its shape alone.

FLOPs are those of the matrix products, 2 for a multiplication and its addition; norms,
activations, softmax, embedding lookups and biases are left out, as is usual: they cost time, but
next to no arithmetic. Attention counts in full: the causal mask hides half of the scores, but a
plain implementation computes them, and one that skips them does less than is counted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Literal, get_args

from flopwatch.jobs.flops import (
    count_expert_weights,
    count_flops_by_part,
    count_router_weights,
    count_weights,
    spread_by_dtype,
)
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.variants import Mode, Precision
from flopwatch.layers import registry

Swapped = Literal["feed-forward", "linear"]
"""Which layers of a model are exchanged: those of its feed-forward parts, or all linear layers of
its blocks, those of attention too."""
FORWARD, BACKWARD = "forward/feed-forward", "backward/feed-forward"
"""The feed-forward layers as regions of a training step."""
ADAMW_FLOPS = 12
"""For one parameter: two moments, their corrections, a root, a division, decay and update."""
OPTIMIZER_FLOPS = {"adamw": ADAMW_FLOPS, "adamw-unfused": ADAMW_FLOPS, "sgd": 2}
"""For one parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardFlops:
    """Of one forward pass, by part; the parts add up to all matrix products."""

    feed_forward: int
    attention_projections: int
    """Query, key, value and output."""
    attention_products: int
    """Queries with keys, and scores with values; in full, not halved for the causal mask."""
    embedding_projections: int
    """Between embedding size and hidden size, both ways; 0 where those are equal."""
    head: int
    """The logits of every position."""

    @property
    def forward(self) -> int:
        return sum(astuple(self))

    @property
    def linear(self) -> int:
        """All linear layers of the blocks."""
        return self.feed_forward + self.attention_projections

    @property
    def backward(self) -> int:
        """Twice the forward pass: each product has two operands, and the gradient of each is a
        product of the same size. Nothing is subtracted for the first layer, whose input needs a
        gradient too: the embedding's."""
        return 2 * self.forward


def count_flops(shape: Shape, *, batch: int, tokens: int) -> ForwardFlops:
    """Of `batch` texts of `tokens` each.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> flops = count_flops(find_shape("opt-125m"), batch=1, tokens=512)
    >>> flops.feed_forward, flops.head, flops.backward // flops.forward
    (57982058496, 39535509504, 2)
    """
    parts = count_flops_by_part(shape, sequences=batch, tokens=tokens)
    forward = {part: passes.forward for part, passes in parts.items()}
    return ForwardFlops(
        feed_forward=forward["feed-forward"],
        attention_projections=forward["qkv"] + forward["output"],
        attention_products=forward["scores"] + forward["values"],
        embedding_projections=forward["embedding"],
        head=forward["head"],
    )


def count_step_flops(
    shape: Shape,
    spec: str,
    batch: tuple[int, int],
    *,
    dtype: str,
    master_dtype: str | None = None,
    swapped: Swapped = "feed-forward",
) -> dict[str, dict[str, float]]:
    """Of a training step with exchanged layers, by phase and dtype, and of those layers inside
    them; nothing where the spec does not say. `master_dtype` is that of the parameters, and so of
    the optimizer, where it is not the one that products are in.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> shape = find_shape("opt-125m")
    >>> count_step_flops(shape, "dense", (1, 512), dtype="float32")["forward/feed-forward"]
    {'float32': 57982058496.0}
    """
    sequences, tokens = batch
    dense = count_flops(shape, batch=sequences, tokens=tokens)
    exchanged = dense.feed_forward if swapped == "feed-forward" else dense.linear
    # Of one weight and token, whose dense FLOPs are 2: a spec's FLOPs are in proportion to those.
    unit = registry.count_flops_by_dtype(spec, 1, 1, 1, dtype)
    density = registry.find_density(registry.parse(spec))
    if not unit or density is None:
        return {}
    inside = {phase: _scale(counts, exchanged / 2) for phase, counts in unit.items()}
    others = {"forward": dense.forward - exchanged, "backward": 2 * (dense.forward - exchanged)}
    weights = exchanged / (2 * sequences * tokens)
    parameters = count_parameters(shape) - weights * (1 - density)
    return {
        **{phase: _add(counts, dtype, others[phase]) for phase, counts in inside.items()},
        "optimizer": {master_dtype or dtype: ADAMW_FLOPS * parameters},
        **{f"{phase}/{swapped}": counts for phase, counts in inside.items()},
    }


def count_mode_flops(
    shape: Shape,
    mode: Mode,
    batch: tuple[int, int],
    precision: Precision,
    optimizer: str = "adamw",
) -> dict[str, dict[str, float]]:
    """Of a training step, by phase and dtype, and of parts of it; nothing where layers are
    exchanged by a pattern, or for ones that do not tell.

    What is computed again in the backward pass counts there.

    >>> from flopwatch.jobs.variants import PRECISIONS, parse_mode
    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> flops = count_mode_flops(
    ...     find_shape("small"), parse_mode("checkpointed"), (4, 128), PRECISIONS["fp32"]
    ... )
    >>> round(flops["backward"]["float32"] / flops["forward"]["float32"], 2)
    2.71
    """
    if mode.spec != "dense" and mode.match not in get_args(Swapped):
        return {}
    dtype = precision.product_dtype
    if mode.spec == "dense":
        sequences, tokens = batch
        parts = count_flops_by_part(
            shape, sequences=sequences, tokens=tokens, recompute=mode.recompute
        )
        updates = float(OPTIMIZER_FLOPS[optimizer] * count_parameters(shape))
        return {**spread_by_dtype(parts, dtype), "optimizer": {precision.dtype: updates}}
    return _count_exchanged(shape, mode, batch, precision, optimizer)


def _count_exchanged(
    shape: Shape, mode: Mode, batch: tuple[int, int], precision: Precision, optimizer: str
) -> dict[str, dict[str, float]]:
    """The same where other layers are in place of some."""
    dtype = precision.product_dtype
    forward = count_flops(shape, batch=batch[0], tokens=batch[1])
    swapped: Swapped = "linear" if mode.match == "linear" else "feed-forward"
    flops = count_step_flops(
        shape, mode.spec, batch, dtype=dtype, master_dtype=precision.dtype, swapped=swapped
    )
    if not flops:
        return {}
    attention = forward.attention_projections + forward.attention_products
    parts = {"head": forward.head}
    if swapped == "feed-forward":
        parts["attention"] = attention
    flops |= {f"forward/{part}": {dtype: float(count)} for part, count in parts.items()}
    flops |= {f"backward/{part}": {dtype: 2.0 * count} for part, count in parts.items()}
    if mode.recompute == "selective":
        _add_attention_again(flops, forward, dtype, mode)
    elif mode.recompute == "full":
        _add_recomputed(flops, forward, dtype)
    relative = OPTIMIZER_FLOPS[optimizer] / ADAMW_FLOPS
    return {**flops, "optimizer": _scale(flops["optimizer"], relative)}


def spread_flops(
    forward: float, parameters: int, precision: Precision, optimizer: str = "adamw"
) -> dict[str, dict[str, float]]:
    """Of a training step, by phase and dtype, where only the forward pass is known."""
    return {
        "forward": {precision.product_dtype: float(forward)},
        "backward": {precision.product_dtype: 2.0 * forward},
        "optimizer": {precision.dtype: float(OPTIMIZER_FLOPS[optimizer] * parameters)},
    }


def _add_recomputed(flops: dict[str, dict[str, float]], forward: ForwardFlops, dtype: str) -> None:
    """Add to the backward pass what it computes again of the forward pass: all blocks."""
    for part in ("", "/attention", "/feed-forward", "/linear"):
        left_out = forward.head + forward.embedding_projections if part == "" else 0.0
        for each, count in flops.get(f"forward{part}", {}).items():
            again = count - (left_out if each == dtype else 0.0)
            flops[f"backward{part}"] = _add(flops[f"backward{part}"], each, again)


def _add_attention_again(
    flops: dict[str, dict[str, float]], forward: ForwardFlops, dtype: str, mode: Mode
) -> None:
    """Add to the backward pass attention's products, and exchanged layers: only results of plain
    linear layers are kept."""
    again = {
        "attention": {dtype: float(forward.attention_products)},
        mode.match: flops[f"forward/{mode.match}"],
    }
    for part, counts in again.items():
        for key in ("backward", f"backward/{part}"):
            if key in flops:  # attention has no count of its own where its layers are exchanged
                for each, count in counts.items():
                    flops[key] = _add(flops[key], each, count)


def _scale(counts: Mapping[str, float], factor: float) -> dict[str, float]:
    return {dtype: count * factor for dtype, count in counts.items()}


def _add(counts: Mapping[str, float], dtype: str, more: float) -> dict[str, float]:
    return {**counts, dtype: counts.get(dtype, 0.0) + more}


def count_parameters(shape: Shape, *, active: bool = False) -> int:
    """Shared ones (an LM head that is the embedding) count once, rows that pad the vocabulary count
    too; with `active`, only those experts that a token goes through.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> count_parameters(find_shape("opt-125m"))
    125239296
    """
    architecture = ARCHITECTURES[shape.architecture]
    hidden, weights = shape.hidden_size, count_weights(shape)
    norm = architecture.norm_vectors * hidden
    experts = (shape.active_experts if active else shape.experts) or 1
    expert = count_expert_weights(shape)
    attention_biases = 0
    if architecture.has_biases:
        expert += (2 if shape.is_gated else 1) * shape.feed_forward_size + hidden
        attention_biases = 4 * hidden
    feed_forward = experts * expert + count_router_weights(shape)
    extra = architecture.extra_positions
    return (
        (weights["head"] + weights["padding"]) * (1 if shape.is_tied else 2)
        + (0 if extra is None else (shape.positions + extra) * hidden)
        + weights["embedding"]
        + weights["qkv"]
        + weights["output"]
        + shape.layers * (attention_biases + feed_forward + 2 * norm)
        + (norm if shape.norm_first else 0)
    )
