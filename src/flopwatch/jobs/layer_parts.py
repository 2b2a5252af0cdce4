"""What the layers of a model consist of: the one description that parameters, FLOPs, memory and
predictions add up.

`list_layers` gives each kind of layer once, with how many layers are of it. A layer has

    linears      its weight matrices, of which a token goes through some
    attention    products of queries, keys and values, or None
    scan         products of a state space or of linear attention, or None
    vectors      all other parameters: norms, biases and so on are counted, but compute no matmul

Layers of a model may differ: ``pattern`` of a `Shape` has a letter for each, and is repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING, Literal, get_args

from flopwatch.jobs.architectures import ARCHITECTURES, Architecture

if TYPE_CHECKING:
    from flopwatch.jobs.model_shapes import Shape

Part = Literal[
    "embedding", "qkv", "scores", "values", "output", "state-space", "scan", "feed-forward", "mtp",
    "head", "padding",
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)
LETTERS = {
    "f": "full attention",
    "s": "attention in a sliding window",
    "c": "attention within chunks",
    "m": "Mamba 2",
    "l": "linear attention by the gated delta rule",
    "d": "feed-forward alone",
    "e": "experts alone",
}
"""Of a pattern."""
WINDOWED = "sc"
RECURRENT = "ml"
SPLIT = "de"
"""Layers that are a feed-forward part alone, where layers are split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """A weight matrix of a layer, or several alike, of which a token goes through some."""

    part: Part
    inputs: int
    outputs: int
    copies: int = 1
    """Experts."""
    active: int = 1
    """Of those, that a token goes through."""
    has_bias: bool = False
    reads: int | None = None
    """Numbers of a token that it reads, where those are not its inputs: gates are applied on the
    way, and a router reads what experts read."""

    @property
    def weights(self) -> int:
        """Of one copy."""
        return self.inputs * self.outputs

    @property
    def is_router(self) -> bool:
        """Or the gate of a shared expert."""
        return self.reads == 0

    def count_parameters(self, *, active: bool = False) -> int:
        biases = self.outputs if self.has_bias else 0
        return (self.active if active else self.copies) * (self.weights + biases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Products of every position with those that it sees."""

    heads: int
    key_value_heads: int
    """That are in memory: with latent attention, all."""
    key_dim: int
    """Of a head's queries and keys."""
    value_dim: int
    window: int | None = None
    """Most positions that one sees, itself included; None: all before it."""
    is_chunked: bool = False
    """Whether windows lie side by side, and do not slide."""
    index_width: int = 0
    """Multiplications of a pair of positions that choose which ones are seen: of sparse attention,
    where `window` says how many."""

    @property
    def key_width(self) -> int:
        return self.heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.heads * self.value_dim

    def count_pairs(self, tokens: int, *, masked: bool) -> int:
        """Of positions, in one sequence and one head: all, or where masks leave something.

        >>> wide = Attention(heads=1, key_value_heads=1, key_dim=1, value_dim=1)
        >>> wide.count_pairs(5, masked=False), wide.count_pairs(5, masked=True)
        (25, 15)
        >>> replace(wide, window=2).count_pairs(5, masked=True)
        9
        >>> replace(wide, window=2, is_chunked=True).count_pairs(5, masked=True)
        7
        """
        if not masked:
            return tokens**2
        window = min(self.window or tokens, tokens)  # which ones sparse attention sees is no matter
        if self.is_chunked:
            whole, rest = divmod(tokens, window)
            return whole * _sum_to(window) + _sum_to(rest)
        return _sum_to(window) + (tokens - window) * window


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """Products of a state space or of linear attention, computed in chunks: within a chunk like
    attention, and between chunks through a state."""

    chunk: int
    """Positions."""
    pair_width: int
    """Multiplications of a pair of positions of a chunk."""
    state_width: int
    """Multiplications of a position with the state, and into it."""
    inner_state: int
    """Numbers of the state."""
    read_width: int
    """Numbers of a token that it reads,"""
    written_width: int
    """and writes."""

    def count_multiplications(self, tokens: int, *, masked: bool) -> int:
        """Of one sequence."""
        chunk = min(self.chunk, tokens)
        whole, rest = divmod(tokens, chunk)
        if masked:
            pairs = whole * _sum_to(chunk) + _sum_to(rest)
        else:
            pairs = -(-tokens // chunk) * chunk**2  # the last chunk is padded
        return pairs * self.pair_width + tokens * self.state_width


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One kind of layer of a model."""

    kind: str
    """Its letter of the pattern, and ``d`` or ``e`` for its feed-forward part: ``fd``, ``se``."""
    count: int
    """Layers of this kind."""
    linears: tuple[Linear, ...]
    vectors: int
    """Parameters outside of linear layers."""
    attention: Attention | None = None
    scan: Scan | None = None
    keeps_last: bool = False
    """Whether the backward pass needs the result of the last matmul, so that full recomputation
    repeats it: a norm or a router's weights follow."""

    def count_parameters(self, *, active: bool = False) -> int:
        """Of one such layer."""
        return self.vectors + sum(each.count_parameters(active=active) for each in self.linears)

    def list_part(self, part: Part) -> list[Linear]:
        return [each for each in self.linears if each.part == part]

    @property
    def experts(self) -> tuple[Linear, ...]:
        """Those that expert parallelism divides."""
        return tuple(each for each in self.linears if each.copies > 1)


def _sum_to(number: int) -> int:
    return number * (number + 1) // 2


@lru_cache(maxsize=512)
def list_layers(shape: Shape) -> tuple[Layer, ...]:
    """Each kind once, in the order of its first layer; layers of multi-token prediction are not
    among them (`list_mtp_layers`)."""
    return tuple(_make_layer(shape, kind, count) for kind, count in _count_kinds(shape).items())


def _count_kinds(shape: Shape) -> dict[str, int]:
    """Layers of each kind, from one period of them: there may be any number of layers."""
    period = lcm(len(find_pattern(shape)), shape.expert_every or 1)
    dense = min(shape.dense_layers or 0, shape.layers)
    counts: Counter[str] = Counter()
    for begin, end in ((0, dense), (dense, shape.layers)):
        for place in range(begin, min(begin + period, end)):
            counts[find_kind(shape, place)] += -((place - end) // period)
    return counts


def list_kinds(shape: Shape) -> tuple[str, ...]:
    """Of all layers in order, as `Layer.kind`."""
    return tuple(find_kind(shape, place) for place in range(shape.layers))


def find_kind(shape: Shape, place: int) -> str:
    """Of the layer at this place."""
    pattern = find_pattern(shape)
    letter = pattern[place % len(pattern)]
    if ARCHITECTURES[shape.architecture].splits_layers:
        return letter
    return letter + ("e" if has_experts(shape, place) else "d")


def list_mtp_layers(shape: Shape) -> tuple[Layer, ...]:
    """Of multi-token prediction: each module is a projection of two hidden states to one, and a
    layer like the last one. Embedding and head are those of the model."""
    if not shape.mtp_layers:
        return ()
    last = _make_layer(shape, find_kind(shape, shape.layers - 1), shape.mtp_layers)
    hidden, norm = shape.hidden_size, _count_norm(shape)
    joint = Linear(part="mtp", inputs=2 * hidden, outputs=hidden)
    # Norms of the hidden state, of the next token's embedding, and before the head.
    return (replace(last, linears=(joint, *last.linears), vectors=last.vectors + 3 * norm),)


def find_pattern(shape: Shape) -> str:
    return shape.pattern or ("s" if shape.window else "f")


def has_experts(shape: Shape, place: int) -> bool:
    """Whether the layer at this place has experts."""
    if shape.experts is None or place < (shape.dense_layers or 0):
        return False
    return (place + 1) % (shape.expert_every or 1) == 0


def _make_layer(shape: Shape, kind: str, count: int) -> Layer:
    known = ARCHITECTURES[shape.architecture]
    mixer, feed_forward = kind[0].strip(SPLIT), kind[-1].strip("fscml")
    linears: list[Linear] = []
    vectors, attention, scan = 0, None, None
    if mixer and mixer in RECURRENT:
        made, more, scan = _make_recurrent(shape, known, mixer)
        linears, vectors = linears + made, vectors + more
    elif mixer:
        attention = _make_attention(shape, mixer)
        made, more = _list_projections(shape, known, attention)
        linears, vectors = linears + made, vectors + more
    if feed_forward:
        linears += _list_experts(shape, known) if feed_forward == "e" else _list_dense(shape, known)
    norms = known.norms if shape.norms is None else shape.norms
    halves = 2 if mixer and feed_forward else 1
    # What a router weighs is needed for its gradient; a shared expert comes last, and is added.
    is_added = feed_forward != "e" or (shape.shared_expert_size and not known.gates_shared_expert)
    vectors += _count_norm(shape) * (norms * halves // 2)
    return Layer(
        kind=kind,
        count=count,
        linears=tuple(linears),
        vectors=vectors,
        attention=attention,
        scan=scan,
        keeps_last=not is_added or known.norms_after or not shape.norm_first,
    )


def _count_norm(shape: Shape) -> int:
    return ARCHITECTURES[shape.architecture].norm_vectors * shape.hidden_size


def _make_attention(shape: Shape, letter: str) -> Attention:
    index_heads = (shape.index_heads or 0) if shape.index_topk else 0
    return Attention(
        heads=shape.heads,
        key_value_heads=shape.heads if shape.kv_lora_rank else shape.key_value_heads or shape.heads,
        key_dim=shape.head_size,
        value_dim=shape.v_head_dim or shape.head_size,
        window=shape.window if letter in WINDOWED else shape.index_topk,
        is_chunked=letter == "c",
        # A product for each head, and the sum over heads.
        index_width=index_heads * ((shape.index_head_dim or 0) + 1),
    )


def _list_projections(
    shape: Shape, known: Architecture, attention: Attention
) -> tuple[list[Linear], int]:
    """The linear layers around attention, and its other parameters."""
    biases = shape.biases or known.biases
    has_input_biases = biases in ("qkv", "attention", "all")
    hidden, keys = shape.hidden_size, attention.key_value_heads * attention.key_dim
    output = Linear(
        part="output",
        inputs=attention.value_width,
        outputs=hidden,
        has_bias=biases in ("attention", "all"),
    )
    vectors = attention.heads if known.has_sinks else 0
    if shape.kv_lora_rank:
        made, more = _list_latent(shape, attention)
        return [*made, output], vectors + more
    gates = attention.value_width if known.gates_attention else 0
    values = attention.key_value_heads * attention.value_dim
    qkv = Linear(
        part="qkv",
        inputs=hidden,
        outputs=attention.key_width + gates + keys + values,
        has_bias=has_input_biases,
    )
    vectors += {
        "none": 0,
        "head": 2 * attention.key_dim,
        "all": attention.key_width + keys,
    }[known.qk_norm]
    return [qkv, output], vectors


def _list_latent(shape: Shape, attention: Attention) -> tuple[list[Linear], int]:
    """Multi-head latent attention: queries, keys and values come from narrow states, which have
    norms; the rotary part of a key is the same for all heads."""
    hidden, rank, query_rank = shape.hidden_size, shape.kv_lora_rank or 0, shape.q_lora_rank
    rotary = shape.qk_rope_head_dim or 0
    widths = [
        (hidden, rank + rotary),
        (rank, attention.heads * (attention.key_dim - rotary + attention.value_dim)),
        *([(hidden, query_rank), (query_rank, attention.key_width)] if query_rank else []),
        *([] if query_rank else [(hidden, attention.key_width)]),
    ]
    vectors = rank + (query_rank or 0)
    if shape.index_topk:
        heads, width = shape.index_heads or 0, shape.index_head_dim or 0
        widths += [(query_rank or hidden, heads * width), (hidden, width), (hidden, heads)]
        vectors += 2 * width  # a LayerNorm of its keys
    linears = [Linear(part="qkv", inputs=inputs, outputs=outputs) for inputs, outputs in widths]
    return linears, vectors


def _make_recurrent(
    shape: Shape, known: Architecture, letter: str
) -> tuple[list[Linear], int, Scan]:
    """The linear layers around a scan, its other parameters, and the scan."""
    hidden, heads, state = shape.hidden_size, shape.state_heads or 1, shape.state_size or 1
    inner, keys = heads * (shape.state_head_dim or 1), (shape.state_groups or 1) * state
    convolved = inner + 2 * keys
    convolution = convolved * ((shape.conv_size or 1) + int(known.conv_bias))
    is_delta = letter == "l"
    if is_delta:  # two numbers of a head; a decay and a bias of it; a norm of each head's result
        numbers, own = 2, 2 * heads + (shape.state_head_dim or 1)
        pair_width, state_width = heads * (2 * state) + inner, 3 * inner * state
    else:  # one number; a decay, a bias and a skip connection; a norm of the whole result
        numbers, own = 1, 3 * heads + inner
        pair_width, state_width = keys + inner, 2 * inner * state
    linears = [
        Linear(part="state-space", inputs=hidden, outputs=convolved + inner + numbers * heads),
        Linear(part="state-space", inputs=inner, outputs=hidden),
    ]
    scan = Scan(
        chunk=shape.scan_chunk or 1,
        pair_width=pair_width,
        state_width=state_width,
        inner_state=inner * state,
        read_width=convolved,
        written_width=inner,
    )
    return linears, convolution + own, scan


def _list_dense(shape: Shape, known: Architecture) -> list[Linear]:
    return _list_gated(shape, known, shape.feed_forward_size)


def _list_experts(shape: Shape, known: Architecture) -> list[Linear]:
    hidden, experts = shape.hidden_size, shape.experts or 1
    router = Linear(
        part="feed-forward", inputs=hidden, outputs=experts, has_bias=known.router_bias, reads=0
    )
    size = shape.expert_size or shape.feed_forward_size
    routed = _list_gated(shape, known, size, experts, shape.active_experts or 1)
    if not shape.shared_expert_size:
        return [router, *routed]
    shared = _list_gated(shape, known, shape.shared_expert_size)
    gate = Linear(part="feed-forward", inputs=hidden, outputs=1, reads=0)
    return [router, *routed, *shared, *([gate] if known.gates_shared_expert else [])]


def _list_gated(
    shape: Shape, known: Architecture, size: int, copies: int = 1, active: int = 1
) -> list[Linear]:
    has_bias = (shape.biases or known.biases) in ("feed-forward", "all")
    up = (2 if shape.is_gated else 1) * size
    raised = Linear(
        part="feed-forward",
        inputs=shape.hidden_size,
        outputs=up,
        copies=copies,
        active=active,
        has_bias=has_bias,
    )
    return [raised, replace(raised, inputs=size, outputs=shape.hidden_size, reads=up)]
