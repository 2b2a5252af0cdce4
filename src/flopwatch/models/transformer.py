"""A causal transformer, as plain as it can be.

Two architectures, by what a `Shape` says: ``decoder`` is a Llama (RMSNorm, rotary positions,
SwiGLU, no biases), ``gpt`` a GPT-2 (LayerNorm, learned positions, GELU, biases). Both norm first.
A ``decoder`` may have mixtures of experts in the place of feed-forward parts (`feed_forward`).
It is called like a model of the library transformers, ``model(input_ids=ids, labels=ids).loss``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from flopwatch.devices.kinds import HOST
from flopwatch.jobs.layer_parts import has_experts
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.training_job import Attention, Recompute
from flopwatch.layers.causal_attention import attend_fused, attend_plainly, make_mask
from flopwatch.models.feed_forward import (
    BALANCE_COEFFICIENT,
    Balance,
    FeedForward,
    Mixing,
    Mixture,
)
from flopwatch.models.initialisation import draw_each
from flopwatch.worker.instruments import region

ROTARY_BASE = 10_000.0
WEIGHT_STD = 0.02
IGNORED = -100
"""The label of a position whose next token is not known."""
MATMULS = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.flopwatch.grouped_matmul.default,
]
"""With a weight. Those of attention, and of layers in blocks, are matmuls of batches (bmm)."""
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "full": {"use_reentrant": False},
    "selective": {
        "use_reentrant": False,
        "context_fn": partial(create_selective_checkpoint_contexts, MATMULS),
    },
}
"""How torch's checkpoint is called, by what is recomputed."""


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None
    expert_rows: Tensor | None = None
    """Of each mixture, how often tokens go through each expert."""


class Transformer(nn.Module):
    """Token ids to logits, and to the loss where labels are given. One stage of a pipeline has some
    of the `layers` only, the first one the embedding, and the last one the head."""

    def __init__(self, shape: Shape, layers: range | None = None) -> None:
        super().__init__()
        self.shape = shape
        layers = range(shape.layers) if layers is None else layers
        has_positions = ARCHITECTURES[shape.architecture].extra_positions is not None
        self.embedding: nn.Embedding | None = None
        self.positions: nn.Embedding | None = None
        self.norm: nn.Module | None = None
        self.head: nn.Linear | None = None
        if layers.start == 0:
            self.embedding = nn.Embedding(shape.vocabulary, shape.hidden_size)
            if has_positions:
                self.positions = nn.Embedding(shape.positions, shape.hidden_size)
        self.blocks = nn.ModuleList()
        for number in layers:  # with the names that they have in the whole model
            self.blocks.add_module(str(number), Block(shape, number))
        if layers.stop == shape.layers:
            self.norm = make_norm(shape)
            self.head = nn.Linear(shape.hidden_size, shape.vocabulary, bias=False)
        self.rotation = None if has_positions else Rotation(shape.head_size, shape.positions)
        self.tie()

    def tie(self) -> None:
        """Make the head's weight the embedding's, where they are one. Moving a model from the
        device ``meta``, or between devices that torch does not know by itself, parts them."""
        if self.shape.is_tied and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:
        logits, balances = self.compute(input_ids)
        loss = None if labels is None else next_token_loss(logits, labels)
        if not balances:
            return Output(logits, loss)
        if loss is not None:
            loss = loss + BALANCE_COEFFICIENT * torch.stack([each.loss for each in balances]).sum()
        return Output(logits, loss, torch.stack([each.rows for each in balances]))

    def compute(self, x: Tensor) -> tuple[Tensor, list[Balance]]:
        """From token ids to logits; of a stage, from what the one before it gives to what the next
        one takes. With the balance of each mixture of experts."""
        if self.embedding is not None:
            with region("embedding"):
                num_tokens = x.shape[1]
                x = self.embedding(x)
                if self.positions is not None:
                    x = x + self.positions.weight[:num_tokens]
        balances = []
        for block in self.blocks:
            x, balance = block(x, self.rotation)
            if balance is not None:
                balances.append(balance)
        if self.norm is not None and self.head is not None:
            with region("norm"):
                x = self.norm(x)
            with region("head"):
                x = self.head(x)
        return x, balances

    def choose_attention(self, kind: Attention) -> None:
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.kind = kind

    def choose_mixing(self, mixing: Mixing) -> None:
        for module in self.modules():
            if isinstance(module, Mixture):
                module.mixing = mixing

    def choose_recompute(self, recompute: Recompute) -> None:
        for module in self.modules():
            if isinstance(module, Block):
                module.recompute = recompute

    def initialize(self) -> None:
        """Draw all weights from torch's current seed."""
        draw_each(self.named_parameters(), self.draw)
        if self.rotation is not None:
            self.rotation.initialize()

    def draw(self, name: str, parameter: Tensor) -> None:
        """A parameter's first values. Weights before a sum are scaled down, so that what the blocks
        add up to does not grow with their number."""
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            is_added = name.endswith(("output.weight", "down.weight", "experts.down"))
            parameter.normal_(std=WEIGHT_STD / (math.sqrt(2 * self.shape.layers) ** is_added))


class Stage(Transformer):
    """Of a pipeline: some layers. The first stage takes token ids, the last one gives logits."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.compute(x)[0]


class Block(nn.Module):
    def __init__(self, shape: Shape, place: int) -> None:
        super().__init__()
        self.recompute: Recompute = "none"
        self.attention_norm = make_norm(shape)
        self.attention = SelfAttention(shape)
        self.feed_forward_norm = make_norm(shape)
        self.feed_forward = (Mixture if has_experts(shape, place) else FeedForward)(shape)

    def forward(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Balance | None]:
        """Checkpoints lie inside, so that what wraps a block (torch.compile, or what gathers its
        parameters from other ranks) sees all of it, recomputation too."""
        if self.recompute == "none":
            return self.compute(x, rotation)
        again: tuple[Tensor, Balance | None] = checkpoint(
            self.compute, x, rotation, **CHECKPOINTS[self.recompute]
        )
        return again

    def compute(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Balance | None]:
        with region("norm"):
            normed = self.attention_norm(x)
        with region("attention"):
            x = x + self.attention(normed, rotation)
        with region("norm"):
            normed = self.feed_forward_norm(x)
        with region("feed-forward"):
            if isinstance(self.feed_forward, Mixture):
                added, balance = self.feed_forward(normed)
            else:
                added, balance = self.feed_forward(normed), None
            return x + added, balance


class SelfAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        has_biases = ARCHITECTURES[shape.architecture].has_biases
        self.head_size = shape.head_size
        self.kind: Attention = "sdpa"
        self.qkv = nn.Linear(shape.hidden_size, 3 * shape.hidden_size, bias=has_biases)
        self.output = nn.Linear(shape.hidden_size, shape.hidden_size, bias=has_biases)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        with region("attention/qkv"):
            # Of all heads, or of those that this rank has.
            qkv = self.qkv(x).unflatten(-1, (3, -1, self.head_size))
            query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each batch, heads, tokens, head size
        if rotation is not None:
            with region("attention/rotation"):
                query, key = rotation(query), rotation(key)
        attended = ATTENTIONS[self.kind](query, key, value)
        with region("attention/output"):
            mixed: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return mixed


def _attend_plainly(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    num_tokens = query.shape[-2]
    return attend_plainly(query, key, value, make_mask(num_tokens, num_tokens, query.device))


ATTENTIONS = {"sdpa": attend_fused, "plain": _attend_plainly}


class Rotation(nn.Module):
    """Rotary positions: pairs of features turn by an angle that grows with the position."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, head_size: int, positions: int) -> None:
        super().__init__()
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.empty(positions, head_size), persistent=False)

    def initialize(self) -> None:
        positions, head_size = self.cosines.shape
        device = self.cosines.device
        exponents = torch.arange(0, head_size, 2, device=device, dtype=torch.float64) / head_size
        frequencies = ROTARY_BASE**-exponents
        angles = torch.outer(torch.arange(positions, device=device), frequencies).repeat(1, 2)
        self.cosines.copy_(angles.cos())
        self.sines.copy_(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        num_tokens = x.shape[-2]
        cosines, sines = self.cosines[:num_tokens], self.sines[:num_tokens]
        first, second = x.chunk(2, dim=-1)
        return (x * cosines + torch.cat((-second, first), dim=-1) * sines).to(x.dtype)


def make_norm(shape: Shape) -> nn.Module:
    if ARCHITECTURES[shape.architecture].norm_vectors == 1:
        return nn.RMSNorm(shape.hidden_size, eps=1e-5)
    return nn.LayerNorm(shape.hidden_size)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of every position's logits with the token after it."""
    with region("loss"):
        # The labels are moved, not the logits, which are large and would be copied.
        targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED
        )


def build(
    shape: Shape, *, device: str = HOST, dtype: str = "float32", layers: range | None = None
) -> Transformer:
    """With random weights from torch's current seed; on the device ``meta``, with none. With
    `layers`, a stage that has those."""
    with torch.device("meta"):
        model = Transformer(shape) if layers is None else Stage(shape, layers)
    for parameter in model.parameters():  # not the rotation, which needs its precision
        parameter.data = parameter.data.to(getattr(torch, dtype))
    if device != "meta":
        model.to_empty(device=device)
        model.tie()
        model.initialize()
    return model.train()
