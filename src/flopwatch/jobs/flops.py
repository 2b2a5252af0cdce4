"""What a training step computes and moves, by part of the model.

The parts are those of a decoder:

    embedding       the lookup, which computes nothing, and OPT's projections to and from the
                    hidden size
    qkv             queries, keys and values
    scores          queries with keys
    values          scores with values
    output          attention's output layer
    feed-forward    its two or three matrices; of experts those that a token goes through, and the
                    router
    head            the logits of every position
    padding         those rows of the head that stand for no token

FLOPs are those of the matrix products, 2 for a multiplication and its addition. Norms, activation
functions, softmax, lookups and biases are left out. Nor does it count what a fused attention kernel
computes again of the scores inside its own backward pass. A tied head is computed like any other.

Recomputation is what the backward pass computes again of the forward pass:

    none         nothing
    full         all blocks, but for the last product of each: its result is only added to, which
                 needs no result, and torch stops before it
    selective    results of linear layers are kept; the rest of a block is computed again: norms,
                 activation functions, scores and values
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.step_memory import DTYPE_BYTES
from flopwatch.jobs.variants import Precision, Recompute

Part = Literal[
    "embedding", "qkv", "scores", "values", "output", "feed-forward", "head", "padding"
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)
BLOCK: tuple[Part, ...] = ("qkv", "scores", "values", "output", "feed-forward")
"""What each block has."""
ATTENTION: tuple[Part, ...] = ("scores", "values")
"""Products of two activations: no weights, and half of them masked."""


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

    weights: int
    inputs: int
    outputs: int
    rows: int = 0
    """Weights that are looked up: the backward pass only writes their gradients."""


def require_known(shape: Shape) -> None:
    if shape.architecture not in ARCHITECTURES:
        raise UsageError(
            f"what a {shape.architecture!r} computes does not follow from its dimensions alone; "
            f"write it as one of {', '.join(ARCHITECTURES)} with the same dimensions (llama has "
            "key_value_heads, and experts)"
        )


def count_weights(shape: Shape) -> dict[Part, int]:
    """That a token is multiplied with, in the whole model, without biases.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> weights = count_weights(find_shape("opt-125m"))
    >>> weights["qkv"], weights["feed-forward"], weights["head"]
    (21233664, 56623104, 38608896)
    """
    require_known(shape)
    hidden, embedding = shape.hidden_size, shape.embedding_size or shape.hidden_size
    return {
        "embedding": 2 * hidden * embedding if shape.embedding_size else 0,
        "qkv": shape.layers * hidden * _count_qkv_outputs(shape),
        "scores": 0,
        "values": 0,
        "output": shape.layers * hidden**2,
        "feed-forward": shape.layers
        * ((shape.active_experts or 1) * count_expert_weights(shape) + count_router_weights(shape)),
        "head": shape.vocabulary * embedding,
        "padding": shape.padding * embedding,
    }


def count_expert_weights(shape: Shape) -> int:
    """Of one feed-forward part of one block."""
    return (_count_up_matrices(shape) + 1) * shape.hidden_size * shape.feed_forward_size


def count_router_weights(shape: Shape) -> int:
    """Of one block."""
    return shape.hidden_size * (shape.experts or 0)


def count_flops_by_part(
    shape: Shape,
    *,
    sequences: int,
    tokens: int,
    recompute: Recompute = "none",
    causal: bool = False,
) -> dict[Part, Passes]:
    """Of a step over `sequences` texts of `tokens` each. Scores and values count in full, as a
    plain implementation computes them, or with `causal` only where the mask leaves something: for
    S (S + 1) / 2 of S * S pairs of positions.

    The backward pass is twice the forward one: each product has two operands, and the gradient of
    each is a product of the same size.

    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> parts = count_flops_by_part(find_shape("opt-125m"), sequences=1, tokens=512)
    >>> parts["feed-forward"].forward, parts["head"].backward
    (57982058496, 79071019008)
    """
    pairs = tokens * (tokens + 1) // 2 if causal else tokens**2
    products = 2 * sequences * pairs * shape.hidden_size * shape.layers
    weights = count_weights(shape)
    forward = {
        part: products if part in ATTENTION else 2 * sequences * tokens * weights[part]
        for part in PARTS
    }
    last = count_last_products(shape, forward["feed-forward"])
    again = _choose_recomputed(forward, last, recompute)
    return {
        part: Passes(forward=count, backward=2 * count, recomputed=again.get(part, 0))
        for part, count in forward.items()
    }


def count_bytes_by_part(
    shape: Shape,
    *,
    sequences: int,
    tokens: int,
    recompute: Recompute = "none",
    precision: Precision,
) -> dict[Part, Passes]:
    """That a step over `sequences` texts must move between memory and the processor.

    A lower bound: every product reads its operands once and writes its result once, however large
    they are, and everything between products (norms, activation functions, softmax, residuals, the
    loss) is done on the way and moves nothing. Scores never reach memory. The backward pass reads
    weights, inputs and the gradient of the result, and writes the gradients of weights and inputs.
    Of the embedding, a row is read for every token and its gradient written. Of experts, as many
    are read as tokens can reach. Weights and their gradients have the parameters' dtype, all else
    that of the products. Copies for autocast and the optimizer are left out.
    """
    weight_bytes = DTYPE_BYTES[precision.dtype]
    number_bytes = DTYPE_BYTES[precision.product_dtype]

    def measure(traffic: Traffic) -> int:
        numbers = traffic.inputs + traffic.outputs
        return (traffic.weights + traffic.rows) * weight_bytes + numbers * number_bytes

    moved = _count_traffic(shape, sequences, tokens)
    forward = {part: measure(traffic) for part, traffic in moved.items()}
    backward = {
        part: (2 * t.weights + t.rows) * weight_bytes + (2 * t.inputs + t.outputs) * number_bytes
        for part, t in moved.items()
    }
    last = measure(_count_last_traffic(shape, sequences * tokens))
    again = _choose_recomputed(forward, last, recompute)
    return {
        part: Passes(forward=forward[part], backward=backward[part], recomputed=again.get(part, 0))
        for part in PARTS
    }


def spread_by_dtype(parts: Mapping[Part, Passes], dtype: str) -> dict[str, dict[str, float]]:
    """The FLOPs of a step as records have them: by phase and dtype, and those of parts inside, of
    which ``attention`` is four together. What is computed again counts in the backward pass. All
    products of a step have one `dtype`."""
    counts: dict[str, dict[str, float]] = {}
    for phase in ("forward", "backward"):
        done = {
            part: passes.forward if phase == "forward" else passes.backward + passes.recomputed
            for part, passes in parts.items()
        }
        attention = sum(done[part] for part in BLOCK if part != "feed-forward")
        inside = {f"{phase}/{part}": count for part, count in done.items() if count}
        whole = {phase: sum(done.values()), f"{phase}/attention": attention}
        counts |= {key: {dtype: float(count)} for key, count in {**whole, **inside}.items()}
    return counts


def count_last_products(shape: Shape, feed_forward: int) -> int:
    """Of what all feed-forward parts compute, what the last products of the blocks do and full
    recomputation leaves out: nothing where a norm or an expert's share comes after them."""
    if shape.experts or not shape.norm_first:
        return 0
    return feed_forward // (_count_up_matrices(shape) + 1)


def _choose_recomputed(
    forward: Mapping[Part, int], last: int, recompute: Recompute
) -> dict[Part, int]:
    """`last` is the share of the last products of the blocks."""
    if recompute == "selective":
        return {part: forward[part] for part in ATTENTION}
    if recompute == "none":
        return {}
    again = {part: forward[part] for part in BLOCK}
    return {**again, "feed-forward": forward["feed-forward"] - last}


def _count_traffic(shape: Shape, sequences: int, tokens: int) -> dict[Part, Traffic]:
    all_tokens, weights = sequences * tokens, count_weights(shape)
    embedding = shape.embedding_size or shape.hidden_size
    projected = shape.hidden_size + embedding if shape.embedding_size else 0
    learned = ARCHITECTURES[shape.architecture].extra_positions is not None
    positions = tokens * shape.hidden_size if learned else 0
    return {
        "embedding": Traffic(
            rows=all_tokens * embedding + positions,
            weights=weights["embedding"],
            inputs=all_tokens * projected,
            outputs=all_tokens * (embedding + projected),
        ),
        **_count_block_traffic(shape, all_tokens),
        "head": Traffic(
            weights=weights["head"],
            inputs=all_tokens * embedding,
            outputs=all_tokens * shape.vocabulary,
        ),
        # The head reads its input for all of its rows together.
        "padding": Traffic(
            weights=weights["padding"], inputs=0, outputs=all_tokens * shape.padding
        ),
    }


def _count_block_traffic(shape: Shape, all_tokens: int) -> dict[Part, Traffic]:
    hidden, weights = shape.hidden_size, count_weights(shape)
    keys = (shape.key_value_heads or shape.heads) * shape.head_size
    up, active = _count_up_matrices(shape) * shape.feed_forward_size, shape.active_experts or 1
    reached = min(shape.experts or 1, all_tokens * active)
    feed_forward = reached * count_expert_weights(shape) + count_router_weights(shape)
    widths: dict[Part, tuple[int, int]] = {
        "qkv": (hidden, _count_qkv_outputs(shape)),
        "scores": (hidden + keys, 0),
        "values": (keys, hidden),
        "output": (hidden, hidden),
        "feed-forward": (active * (hidden + up), active * (up + hidden) + (shape.experts or 0)),
    }
    return {
        part: Traffic(
            weights=shape.layers * feed_forward if part == "feed-forward" else weights[part],
            inputs=all_tokens * shape.layers * inputs,
            outputs=all_tokens * shape.layers * outputs,
        )
        for part, (inputs, outputs) in widths.items()
    }


def _count_last_traffic(shape: Shape, all_tokens: int) -> Traffic:
    """Of the products that full recomputation leaves out."""
    if not count_last_products(shape, count_expert_weights(shape)):
        return Traffic(weights=0, inputs=0, outputs=0)
    through_blocks = all_tokens * shape.layers
    return Traffic(
        weights=shape.layers * shape.hidden_size * shape.feed_forward_size,
        inputs=through_blocks * _count_up_matrices(shape) * shape.feed_forward_size,
        outputs=through_blocks * shape.hidden_size,
    )


def _count_up_matrices(shape: Shape) -> int:
    """That lead to the feed-forward size."""
    return 2 if shape.is_gated else 1


def _count_qkv_outputs(shape: Shape) -> int:
    """Of one token in one block."""
    return (shape.heads + 2 * (shape.key_value_heads or shape.heads)) * shape.head_size
