"""What each part of `models.transformer` keeps for its backward pass, and what else it needs.

Written down from what torch really does, operation by operation; the tests compare it with a run on
tensors without memory. The terms are those of the moment in which a stage holds most, so that they
are not the sum of all that it ever makes. In the comments, n is a tensor of all tokens' hidden
states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from flopwatch.errors import UsageError
from flopwatch.jobs.layer_parts import has_experts
from flopwatch.jobs.mixture_memory import list_mixture_results, list_mixture_weights, make_mixture
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.parameters import count_up_matrices
from flopwatch.jobs.step_memory import (
    MOMENTS,
    Stage,
    StepMemory,
    Tensor,
    choose_largest,
    find_backward_peak,
    find_forward_peak,
    find_update_peak,
)
from flopwatch.jobs.training_job import TrainingJob

FLOAT, LONG = 4, 8
"""Bytes of a float32 and of an int64."""
COPY = ".weight, 16-bit copy"


def estimate_step(job: TrainingJob, *, on_host: bool = True) -> StepMemory:
    """Of a model of `models.transformer`, with one micro-batch, on a CPU or on an accelerator.

    >>> found = estimate_step(TrainingJob("small", 128, micro_batch=4, precision="fp32"))
    >>> found.peak.name, found.parts()["activations"]
    ('backward, loss', 554031104)
    """
    shape = job.shape
    if not shape.is_ours:
        raise UsageError(
            f"what a {shape.architecture!r} keeps for its backward pass does not follow from its "
            "dimensions alone; write it as decoder or gpt with the same dimensions"
        )
    sizes = Sizes(job, on_host=on_host)
    mixed = [has_experts(shape, place) for place in range(shape.layers)]
    block_of = {kind: list_block(sizes, has_experts=kind) for kind in set(mixed)}
    start, end = [make_embedding(sizes)], make_end(sizes)
    blocks = [s for number, kind in enumerate(mixed) for s in _number(block_of[kind], number)]
    stages = [*start, *blocks, *end]
    kept_bytes = sum(stage.kept_bytes for stage in stages)
    block_bytes = sum(stage.kept_bytes for stage in blocks) // shape.layers
    size_bytes = job.parameters * sizes.parameter_bytes
    weights = list_weights(sizes)
    largest_bytes = max(weight.size_bytes for weight in weights)
    return StepMemory(
        parameters=job.parameters,
        parameter_bytes=size_bytes,
        buffer_bytes=count_buffer_bytes(sizes),
        gradient_bytes=size_bytes,
        optimizer_bytes=MOMENTS[job.optimizer] * size_bytes,
        layers=shape.layers,
        block_bytes=block_bytes,
        rest_bytes=kept_bytes - shape.layers * block_bytes,
        forward=find_forward_peak(stages),
        backward=find_backward_peak(stages),
        optimizer=find_update_peak(job, size_bytes, largest_bytes, on_host=on_host),
        tensors=choose_largest(
            [
                *weights,
                *_count(kept for stage in blocks for kept in stage.kept),
                *(kept for stage in end for kept in stage.kept),
                sizes.tensor("gradient of the logits", shape.rows, element_bytes=FLOAT),
            ]
        ),
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions of one step, and bytes of what recurs in it."""

    job: TrainingJob
    on_host: bool

    @property
    def shape(self) -> Shape:
        return self.job.shape

    @property
    def element_bytes(self) -> int:
        """Of a matmul's result."""
        return self.job.arithmetic.element_bytes

    @property
    def parameter_bytes(self) -> int:
        """Of a parameter, its gradient, and what blocks add up to."""
        return self.job.arithmetic.parameter_bytes

    @property
    def is_autocast(self) -> bool:
        return self.job.arithmetic.is_autocast

    def tensor(self, name: str, *width: int, element_bytes: int | None = None) -> Tensor:
        """Of all tokens, in a matmul's dtype unless another is given."""
        element_bytes = element_bytes or self.element_bytes
        return Tensor(name, (self.job.micro_batch, self.job.seq_len, *width), element_bytes)

    def count(self, *width: int) -> int:
        """Bytes of a matmul's result that is so wide for every token."""
        return self.tensor("", *width).size_bytes

    @property
    def scores(self) -> tuple[int, ...]:
        tokens = self.job.seq_len
        return (self.job.micro_batch, self.shape.heads, tokens, tokens)

    @property
    def softmax_bytes(self) -> int:
        """Of one of its results: autocast computes it in float32 on GPUs, but not on CPUs."""
        is_lifted = self.is_autocast and not self.on_host
        return FLOAT if is_lifted else self.element_bytes

    @property
    def hidden(self) -> int:
        """Bytes of an n that comes out of a matmul."""
        return self.count(self.shape.hidden_size)

    @property
    def stream(self) -> int:
        """Bytes of an n that blocks add to."""
        return self.hidden // self.element_bytes * self.parameter_bytes

    @property
    def full(self) -> int:
        """Bytes of an n in float32."""
        return self.hidden // self.element_bytes * FLOAT

    @property
    def lifted(self) -> int:
        """Bytes of a norm's result in float32, where matmuls take a copy of it."""
        return self.full if self.is_autocast else 0

    @property
    def is_rotary(self) -> bool:
        return ARCHITECTURES[self.shape.architecture].extra_positions is None

    @property
    def has_biases(self) -> bool:
        return ARCHITECTURES[self.shape.architecture].has_biases

    def weigh(self, *shape: int) -> int:
        """Bytes of parameters, and of their gradients."""
        return prod(shape) * self.parameter_bytes

    def copy(self, name: str, *shape: int) -> list[Tensor]:
        """The 16-bit copy of a weight that autocast makes, and its backward pass needs."""
        copied = Tensor(name + COPY, shape, self.element_bytes)
        return [copied] if self.is_autocast else []


def list_block(sizes: Sizes, *, has_experts: bool) -> list[Stage]:
    """As the job computes it."""
    block = make_block(sizes, has_experts=has_experts)
    if sizes.job.recompute == "none":
        return block
    return [recompute(sizes, block, has_experts=has_experts)]


def make_block(sizes: Sizes, *, has_experts: bool) -> list[Stage]:
    attend = {"sdpa": make_fused_attention, "plain": make_plain_attention}
    return [
        make_norm(sizes, "norm before attention"),
        attend[sizes.job.attention](sizes),
        make_norm(sizes, "norm before feed-forward"),
        *(make_mixtures(sizes) if has_experts else [make_feed_forward(sizes)]),
    ]


def make_mixtures(sizes: Sizes) -> list[Stage]:
    """With the shared experts, whose input is that of the others."""
    size = sizes.shape.shared_expert_size
    if not size:
        return [make_mixture(sizes)]
    shared = make_feed_forward(sizes, "shared experts", "feed_forward.shared", size)
    return [make_mixture(sizes), replace(shared, kept=shared.kept[1:])]


def make_norm(sizes: Sizes, name: str) -> Stage:
    """It keeps its input: what the blocks before it add up to."""
    hidden_size = sizes.shape.hidden_size
    vectors = ARCHITECTURES[sizes.shape.architecture].norm_vectors
    statistics = sizes.tensor("statistics of norms", vectors, element_bytes=FLOAT)
    gradient_bytes = sizes.weigh(vectors, hidden_size)
    if vectors == 2 or not sizes.on_host:
        element_bytes = sizes.parameter_bytes
        entry = sizes.tensor("inputs of norms", hidden_size, element_bytes=element_bytes)
        return Stage(
            name=name,
            kept=[entry, statistics],
            gradient_bytes=gradient_bytes,
            forward_bytes=sizes.stream,
            backward_bytes=3 * sizes.stream,  # gradients of the sum, the result and the input
        )
    # On a CPU, RMSNorm is a row of operations in float32, and keeps what stands between them.
    copied_bytes = sizes.stream if sizes.stream < sizes.full else 0
    return Stage(
        name=name,
        kept=[
            sizes.tensor("inputs of norms", hidden_size, element_bytes=FLOAT),
            sizes.tensor(
                "results of norms without their weights", hidden_size, element_bytes=FLOAT
            ),
            statistics,
        ],
        gradient_bytes=gradient_bytes,
        forward_bytes=sizes.full + copied_bytes,
        backward_bytes=4 * sizes.full + copied_bytes,
    )


def make_fused_attention(sizes: Sizes) -> Stage:
    hidden_size, hidden = sizes.shape.hidden_size, sizes.hidden
    turned = ["queries", "keys"] if sizes.is_rotary else []
    kept = [
        *_attention_inputs(sizes),
        # Queries and keys without rotation, and values, are views of it, so that all of it stays.
        sizes.tensor("queries, keys and values", 3 * hidden_size),
        *(sizes.tensor(f"{name}, rotated", hidden_size) for name in turned),
        sizes.tensor("attended values", hidden_size),
        sizes.tensor("log-sums of scores", sizes.shape.heads, element_bytes=FLOAT),
    ]
    output, qkv = _attention_gradients(sizes)
    return Stage(
        name="attention",
        kept=kept,
        gradient_bytes=output + qkv,
        forward_bytes=hidden + sizes.stream + sizes.lifted,
        backward_bytes=max(
            # In attention itself: of its result, of queries, keys and values.
            sizes.stream + output + 4 * hidden,
            # In the matmul before it, when what attention kept is freed.
            sizes.stream + output + qkv - len(turned) * hidden,
        ),
    )


def make_plain_attention(sizes: Sizes) -> Stage:
    hidden_size, hidden, tokens = sizes.shape.hidden_size, sizes.hidden, sizes.job.seq_len
    weights = Tensor("attention weights", sizes.scores, sizes.softmax_bytes)
    copy = Tensor("attention weights, 16-bit copy", sizes.scores, sizes.element_bytes)
    copies = [copy] if sizes.softmax_bytes != sizes.element_bytes else []
    # Of one sequence alone, matmuls take views, and what they are views of stays.
    is_viewed = sizes.job.micro_batch == 1
    whole = [sizes.tensor("queries, keys and values", 3 * hidden_size)] if is_viewed else []
    named = [] if is_viewed and not sizes.is_rotary else ["queries", "keys"]
    named += [] if is_viewed else ["values"]
    kept = [
        *_attention_inputs(sizes),
        *whole,
        *(sizes.tensor(f"{name}, in order", hidden_size) for name in named),
        Tensor("mask", (tokens, tokens), 1),
        weights,
        *copies,
        sizes.tensor("attended values", hidden_size),
    ]
    output, qkv = _attention_gradients(sizes)
    made = (5 if sizes.is_rotary else 3) * hidden
    scores_bytes = weights.size_bytes
    copied_bytes = sum(tensor.size_bytes for tensor in copies)
    return Stage(
        name="attention",
        kept=kept,
        gradient_bytes=output + qkv,
        forward_bytes=made + max(2 * hidden, scores_bytes) + sizes.lifted,
        backward_bytes=sizes.stream + output + max(
            hidden + scores_bytes,  # in the matmul with the values
            2 * scores_bytes - copied_bytes - hidden,  # in the softmax
            qkv - scores_bytes - copied_bytes,  # in the matmul before all of it
        ),
    )  # fmt: skip


def _attention_inputs(sizes: Sizes) -> list[Tensor]:
    hidden_size = sizes.shape.hidden_size
    return [
        sizes.tensor("inputs of attention", hidden_size),
        *sizes.copy("attention.qkv", 3 * hidden_size, hidden_size),
        *sizes.copy("attention.output", hidden_size, hidden_size),
    ]


def _attention_gradients(sizes: Sizes) -> tuple[int, int]:
    """Bytes of the gradients of the weights after attention, and of those before it."""
    hidden_size, biases = sizes.shape.hidden_size, int(sizes.has_biases)
    return (
        sizes.weigh(hidden_size, hidden_size + biases),
        sizes.weigh(3 * hidden_size, hidden_size + biases),
    )


def make_feed_forward(
    sizes: Sizes, name: str = "feed-forward", layer: str = "feed_forward", size: int | None = None
) -> Stage:
    """Of the model's feed-forward size, or of another."""
    shape, hidden_size = sizes.shape, sizes.shape.hidden_size
    matrices, width = count_up_matrices(shape), size or shape.feed_forward_size
    gates = [sizes.tensor(f"gates of {name}", width)] if shape.is_gated else []
    biases = int(sizes.has_biases)
    down = sizes.weigh(hidden_size, width + biases)
    up = sizes.weigh(matrices * width, hidden_size + biases)
    one = sizes.count(width)
    lowering = sizes.copy(f"{layer}.down", hidden_size, width)
    return Stage(
        name=name,
        kept=[
            sizes.tensor(f"inputs of {name}", hidden_size),
            *sizes.copy(f"{layer}.up", matrices * width, hidden_size),
            *lowering,
            sizes.tensor(f"{name}, before the activation", matrices * width),
            *gates,
            sizes.tensor(f"{name}, after the activation", width),
        ],
        gradient_bytes=down + up,
        forward_bytes=sizes.hidden + sizes.stream + sizes.lifted,
        # A weight's copy is gone when its gradient is there.
        backward_bytes=sizes.stream + down - sum(copy.size_bytes for copy in lowering) + max(
            matrices * one,  # in the activation
            up + sizes.hidden - matrices * one,  # in the matmul before it
        ),
    )  # fmt: skip


def make_embedding(sizes: Sizes) -> Stage:
    """It keeps only the input. A head that is the embedding has left a gradient of its own, and the
    sum of both is a third."""
    shape = sizes.shape
    positions = 0 if sizes.is_rotary else sizes.weigh(shape.positions, shape.hidden_size)
    tokens = sizes.weigh(shape.rows, shape.hidden_size)
    return Stage(
        name="embedding",
        gradient_bytes=tokens + positions,
        forward_bytes=(1 if sizes.is_rotary else 2) * sizes.stream,
        backward_bytes=positions + tokens + max(sizes.stream, tokens if shape.is_tied else 0),
    )


def make_end(sizes: Sizes) -> list[Stage]:
    """The last norm, the head and the loss, which is computed in float32."""
    vocabulary, hidden_size = sizes.shape.rows, sizes.shape.hidden_size
    logits = sizes.count(vocabulary)
    probabilities = sizes.tensor("log-probabilities", vocabulary, element_bytes=FLOAT)
    copied_bytes = 0 if sizes.element_bytes == FLOAT else probabilities.size_bytes
    head = sizes.weigh(vocabulary, hidden_size)
    raw_bytes = vocabulary * hidden_size * sizes.element_bytes
    return [
        make_norm(sizes, "last norm"),
        Stage(
            name="head",
            kept=[
                sizes.tensor("inputs of the head", hidden_size),
                *sizes.copy("head", vocabulary, hidden_size),
            ],
            gradient_bytes=head,
            forward_bytes=logits + sizes.lifted,
            backward_bytes=max(logits + raw_bytes + sizes.hidden, head + sizes.full),
        ),
        Stage(
            name="loss",
            kept=[probabilities, sizes.tensor("targets", element_bytes=LONG)],
            forward_bytes=logits + copied_bytes + sizes.lifted,
            backward_bytes=2 * probabilities.size_bytes,
        ),
    ]


def recompute(sizes: Sizes, block: list[Stage], *, has_experts: bool) -> Stage:
    """A block that keeps its input alone, so that in the forward pass its stages follow one
    another with nothing left behind: but for copies that autocast makes, which stay to the end of
    that pass. A selective one also keeps the results of its linear layers, and uses them again."""
    results: list[Tensor] = []
    used: list[Tensor] = []
    if sizes.job.recompute == "selective":
        results, used = make_results(sizes, has_experts=has_experts)
    found_bytes = sum(result.size_bytes for result in used)
    entry = sizes.tensor(
        "inputs of blocks", sizes.shape.hidden_size, element_bytes=sizes.parameter_bytes
    )
    copies = [t for stage in block for t in stage.kept if t.name.endswith(COPY)]
    cached_bytes = sum(copy.size_bytes for copy in copies)
    most = max(
        sum(t.size_bytes for t in stage.kept if t not in [*copies, *results]) + stage.forward_bytes
        for stage in block
    )
    # The block's first norm keeps the same tensor, unless it needs it in another dtype.
    shared_bytes = entry.size_bytes if entry.size_bytes == block[0].kept[0].size_bytes else 0
    again_bytes = find_forward_peak(block).total_bytes + sizes.stream - shared_bytes
    return Stage(
        name="recomputed block",
        kept=[entry, *results],
        gradient_bytes=sum(stage.gradient_bytes for stage in block),
        forward_bytes=most,
        cached_bytes=cached_bytes,
        backward_bytes=max(again_bytes, find_backward_peak(block).total_bytes - shared_bytes)
        - found_bytes,
    )


def make_results(sizes: Sizes, *, has_experts: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Of the linear layers of a block; and of those, which are used again inside the block, and so
    not made: not what is only added to."""
    shape, hidden_size = sizes.shape, sizes.shape.hidden_size
    qkv = sizes.tensor("queries, keys and values", 3 * hidden_size)
    attended = sizes.tensor("results of attention", hidden_size)
    if has_experts:
        results, used = list_mixture_results(sizes)
        return [qkv, attended, *results], [qkv, *used]
    raised = sizes.tensor(
        "feed-forward, before the activation", count_up_matrices(shape) * shape.feed_forward_size
    )
    return [qkv, attended, raised, sizes.tensor("results of feed-forward", hidden_size)], [
        qkv,
        raised,
    ]


def _number(stages: list[Stage], block: int) -> list[Stage]:
    return [replace(stage, name=f"block {block}, {stage.name}") for stage in stages]


def count_buffer_bytes(sizes: Sizes) -> int:
    """Sines and cosines of all positions, and the token ids."""
    shape = sizes.shape
    tables = 2 * shape.positions * shape.head_size * FLOAT if sizes.is_rotary else 0
    return tables + sizes.tensor("", element_bytes=LONG).size_bytes


def list_weights(sizes: Sizes) -> list[Tensor]:
    """The parameters that are matrices."""
    shape, element_bytes = sizes.shape, sizes.parameter_bytes
    hidden, width = shape.hidden_size, shape.feed_forward_size
    once = {"embedding.weight": (shape.rows, hidden)}
    if not shape.is_tied:
        once["head.weight"] = (shape.rows, hidden)
    if not sizes.is_rotary:
        once["positions.weight"] = (shape.positions, hidden)
    everywhere = {
        "attention.qkv.weight": (3 * hidden, hidden),
        "attention.output.weight": (hidden, hidden),
    }
    dense = {
        "feed_forward.up.weight": (count_up_matrices(shape) * width, hidden),
        "feed_forward.down.weight": (hidden, width),
    }
    mixed = sum(has_experts(shape, place) for place in range(shape.layers))
    counts = (
        (once, 1),
        (everywhere, shape.layers),
        (dense, shape.layers - mixed),
        (list_mixture_weights(shape), mixed),
    )
    return [
        Tensor(name, size, element_bytes, count)
        for weights, count in counts
        if count
        for name, size in weights.items()
    ]


def _count(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Equal ones together."""
    return [replace(each, count=count) for each, count in Counter(tensors).items()]
