"""Parameters and floating-point operations of a model, from its shape alone.

FLOPs are those of the matrix products, 2 for a multiplication and its addition; norms,
activations, softmax, embedding lookups and biases are left out, as is usual: they cost time, but
next to no arithmetic. Attention counts in full: the causal mask hides half of the scores, but a
plain implementation computes them, and one that skips them does less than is counted here.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from flopwatch.models.shapes import ARCHITECTURES, Shape

FORWARD, BACKWARD = "forward/feed-forward", "backward/feed-forward"
"""The feed-forward layers as regions of a training step."""


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
    def backward(self) -> int:
        """Twice the forward pass: each product has two operands, and the gradient of each is a
        product of the same size. Nothing is subtracted for the first layer, whose input needs a
        gradient too: the embedding's."""
        return 2 * self.forward


def count_flops(shape: Shape, *, batch: int, tokens: int) -> ForwardFlops:
    """Of `batch` texts of `tokens` each.

    >>> from flopwatch.models.shapes import find_shape
    >>> flops = count_flops(find_shape("opt-125m"), batch=1, tokens=512)
    >>> flops.feed_forward, flops.head, flops.backward // flops.forward
    (57982058496, 39535509504, 2)
    """
    hidden, all_tokens = shape.hidden_size, batch * tokens
    embedding = shape.embedding_size or hidden
    projections = 2 if shape.embedding_size else 0
    per_block = 2 * all_tokens * shape.layers
    return ForwardFlops(
        feed_forward=per_block * _count_feed_forward_weights(shape),
        attention_projections=per_block * 4 * hidden * hidden,
        attention_products=per_block * 2 * tokens * hidden,
        embedding_projections=2 * all_tokens * projections * hidden * embedding,
        head=2 * all_tokens * embedding * shape.vocabulary,
    )


def count_parameters(shape: Shape) -> int:
    """Shared ones (an LM head that is the embedding) count once.

    >>> from flopwatch.models.shapes import find_shape
    >>> count_parameters(find_shape("opt-125m"))
    125239296
    """
    architecture = ARCHITECTURES[shape.architecture]
    hidden = shape.hidden_size
    embedding = shape.embedding_size or hidden
    norm = architecture.norm_vectors * hidden
    biases = 5 * hidden + shape.feed_forward_size if architecture.has_biases else 0
    extra = architecture.extra_positions
    return (
        shape.vocabulary * embedding * (1 if architecture.is_tied else 2)
        + (0 if extra is None else (shape.positions + extra) * hidden)
        + (2 * hidden * embedding if shape.embedding_size else 0)
        + shape.layers
        * (4 * hidden * hidden + _count_feed_forward_weights(shape) + biases + 2 * norm)
        + (norm if shape.norm_first else 0)
    )


def _count_feed_forward_weights(shape: Shape) -> int:
    """In one block, without biases."""
    matrices = ARCHITECTURES[shape.architecture].feed_forward_matrices
    return matrices * shape.hidden_size * shape.feed_forward_size
