"""Causal language models by name: their dimensions and what their architectures have in common.

Dimensions are those that the models were published with. ``opt-6l-H`` is OPT-1.3B cut to 6 layers,
at hidden size H: feed-forward size 4 H and heads of 64, as in OPT-1.3B, whose own hidden size is
2048.
"""

from __future__ import annotations

from dataclasses import dataclass

from flopwatch.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """What all sizes of a model family share."""

    feed_forward: str
    """Glob pattern of the names of the feed-forward linear layers."""
    blocks: str
    """Glob pattern that, of all linear layers, only those inside the blocks match."""
    feed_forward_matrices: int
    """2: up and down; 3: with a gate."""
    norm_vectors: int
    """2: a LayerNorm's weight and bias; 1: an RMSNorm's weight."""
    has_biases: bool
    """Whether the linear layers of the blocks have biases."""
    extra_positions: int | None
    """Learned positions beyond those that a text can have; None: positions are rotary."""
    is_tied: bool
    """Whether the LM head is the token embedding."""


ARCHITECTURES = {
    "opt": Architecture(
        feed_forward="*.fc[12]",
        blocks="*.layers.*",
        feed_forward_matrices=2,
        norm_vectors=2,
        has_biases=True,
        extra_positions=2,
        is_tied=True,
    ),
    "gpt_neox": Architecture(
        feed_forward="*.mlp.dense_*",
        blocks="*.layers.*",
        feed_forward_matrices=2,
        norm_vectors=2,
        has_biases=True,
        extra_positions=None,
        is_tied=False,
    ),
    "llama": Architecture(
        feed_forward="*.mlp.*_proj",
        blocks="*.layers.*",
        feed_forward_matrices=3,
        norm_vectors=1,
        has_biases=False,
        extra_positions=None,
        is_tied=False,
    ),
}
"""By transformers' `model_type`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The dimensions of one model."""

    architecture: str
    hidden_size: int
    feed_forward_size: int
    layers: int
    heads: int
    vocabulary: int
    positions: int = 2048
    """The longest text, in tokens."""
    embedding_size: int | None = None
    """Of token embeddings, where projections lead from there to the hidden size and back (OPT
    only); None: the hidden size itself."""
    norm_first: bool = True
    """False: each norm comes after its layer, and there is none before the LM head (OPT only)."""


def cut_opt(hidden_size: int, layers: int) -> Shape:
    """OPT-1.3B with fewer layers and another width."""
    return Shape(
        architecture="opt",
        hidden_size=hidden_size,
        feed_forward_size=4 * hidden_size,
        layers=layers,
        heads=hidden_size // 64,
        vocabulary=50272,
    )


SHAPES = {
    "opt-125m": Shape(
        architecture="opt",
        hidden_size=768,
        feed_forward_size=3072,
        layers=12,
        heads=12,
        vocabulary=50272,
    ),
    "opt-350m": Shape(
        architecture="opt",
        hidden_size=1024,
        feed_forward_size=4096,
        layers=24,
        heads=16,
        vocabulary=50272,
        embedding_size=512,
        norm_first=False,
    ),
    **{f"opt-6l-{size}": cut_opt(size, layers=6) for size in (768, 1024, 1536, 2048)},
    "pythia-160m": Shape(
        architecture="gpt_neox",
        hidden_size=768,
        feed_forward_size=3072,
        layers=12,
        heads=12,
        vocabulary=50304,
    ),
    "llama-160m": Shape(
        architecture="llama",
        hidden_size=768,
        feed_forward_size=3072,
        layers=12,
        heads=12,
        vocabulary=32000,
    ),
}


def find_shape(name: str) -> Shape:
    """
    >>> find_shape("opt-125m").hidden_size
    768
    """
    if name not in SHAPES:
        raise UsageError(f"there is no model {name!r}; choose one of {', '.join(SHAPES)}")
    return SHAPES[name]
