"""The feed-forward part of a block: one for all tokens, or a mixture of experts.

In a mixture, a router chooses `active_experts` of the `experts` for each token: those of the
largest probability, a softmax over all of them. The token's result is the sum of theirs, weighted
by these probabilities, which are made to add up to 1; shared experts, which all tokens go through,
are one more feed-forward part whose result is added.

No token is dropped. There is a row for each expert of each token; rows are sorted by expert, one
matmul of groups multiplies all of them, and what comes out is put back into the order of tokens.
`mix_plainly` computes the same expert by expert.

So that experts are used evenly, the loss of the model has `BALANCE_COEFFICIENT` times a balance
loss of each mixture, that of GShard and the Switch Transformer: the number of experts times the sum
of f * P over all experts, where f is the expert's share of all rows of the micro-batch and P its
mean probability. It is 1 where all is even.

In comments, T is the number of tokens, K that of the experts of a token, and E that of all experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.layers.grouped_matmul import multiply_groups
from flopwatch.layers.swapping import cast_for_autocast
from flopwatch.models.device_mesh import find_own
from flopwatch.worker.instruments import region

BALANCE_COEFFICIENT = 0.01
"""As in the Switch Transformer."""
Mixing = Literal["grouped", "plain"]


class FeedForward(nn.Module):
    """SwiGLU (two matrices up, as one, of which the first is the gate) or GELU."""

    def __init__(self, shape: Shape, size: int | None = None) -> None:
        """`size` is the model's feed-forward size, unless another is given."""
        super().__init__()
        size = size or shape.feed_forward_size
        has_biases = ARCHITECTURES[shape.architecture].has_biases
        self.is_gated = shape.is_gated
        width = (2 if shape.is_gated else 1) * size
        self.up = nn.Linear(shape.hidden_size, width, bias=has_biases)
        self.down = nn.Linear(size, shape.hidden_size, bias=has_biases)

    def forward(self, x: Tensor) -> Tensor:
        with region("feed-forward/up"):
            raised = self.up(x)
        with region("feed-forward/activation"):
            active = activate(raised, self.is_gated)
        with region("feed-forward/down"):
            lowered: Tensor = self.down(active)
        return lowered


def activate(raised: Tensor, is_gated: bool) -> Tensor:
    if is_gated:
        gate, raised = raised.chunk(2, dim=-1)
        return functional.silu(gate) * raised
    return functional.gelu(raised)


class Experts(nn.Module):
    """Feed-forward parts of equal size, or those of them that a rank has."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        assert shape.experts is not None
        size = shape.expert_size or shape.feed_forward_size
        width = (2 if shape.is_gated else 1) * size
        self.is_gated = shape.is_gated
        self.up = nn.Parameter(torch.empty(shape.experts, width, shape.hidden_size))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.hidden_size, size))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows are sorted by expert, and `ends` has the row after the last one of each."""
        with region("feed-forward/up"):
            raised = multiply_groups(rows, find_own(self.up), ends)
        with region("feed-forward/activation"):
            active = activate(raised, self.is_gated)
        with region("feed-forward/down"):
            return multiply_groups(active, find_own(self.down), ends)


class Balance(NamedTuple):
    """How evenly a mixture has used its experts."""

    loss: Tensor
    rows: Tensor
    """Of each expert."""


class Choice(NamedTuple):
    """Of the router."""

    experts: Tensor  # T, K
    weights: Tensor  # T, K
    balance: Balance


class Mixture(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        assert shape.experts is not None
        assert shape.active_experts is not None
        self.active = shape.active_experts
        self.mixing: Mixing = "grouped"
        self.compute_experts: Callable[[Experts, Tensor, Tensor], Tensor] = compute_here
        """Or on the ranks that have the experts."""
        self.router = nn.Linear(shape.hidden_size, shape.experts, bias=False)
        self.experts = Experts(shape)
        shared = shape.shared_expert_size
        self.shared = FeedForward(shape, shared) if shared else None

    def forward(self, x: Tensor) -> tuple[Tensor, Balance]:
        tokens, _, _ = cast_for_autocast(x.flatten(0, -2), self.router.weight, None)
        with region("feed-forward/router"):
            choice = self.route(tokens)
        if self.mixing == "plain":
            mixed = mix_plainly(self.experts, tokens, choice)
        else:
            mixed = self.mix(tokens, choice)
        if self.shared is not None:
            mixed = mixed + self.shared(tokens)
        return mixed.view_as(x), choice.balance

    def route(self, tokens: Tensor) -> Choice:
        probabilities = self.router(tokens).softmax(dim=-1, dtype=torch.float32)  # T, E
        weights, chosen = probabilities.topk(self.active)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        rows = chosen.new_zeros(probabilities.shape[1])
        rows = rows.index_add(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
        shares = rows / chosen.numel()
        loss = len(rows) * (shares * probabilities.mean(dim=0)).sum()
        return Choice(chosen, weights, Balance(loss, rows))

    def mix(self, tokens: Tensor, choice: Choice) -> Tensor:
        with region("feed-forward/sort"):
            order = choice.experts.flatten().argsort(stable=True)  # T K rows, by expert
            ends = choice.balance.rows.cumsum(0).int()
            rows = tokens.index_select(0, order // self.active)
        results = self.compute_experts(self.experts, rows, ends)
        with region("feed-forward/mix"):
            results = results.index_select(0, order.argsort())  # T K rows, by token
            results = results.view(*choice.weights.shape, -1)
            return (results * choice.weights.to(results.dtype).unsqueeze(-1)).sum(dim=1)


def compute_here(experts: Experts, rows: Tensor, ends: Tensor) -> Tensor:
    results: Tensor = experts(rows, ends)
    return results


def mix_plainly(experts: Experts, tokens: Tensor, choice: Choice) -> Tensor:
    """As it is written down: each expert for the tokens that have chosen it."""
    mixed = torch.zeros_like(tokens)
    for number, (up, down) in enumerate(zip(experts.up, experts.down, strict=True)):
        who, place = (choice.experts == number).nonzero(as_tuple=True)
        active = activate(functional.linear(tokens[who], up), experts.is_gated)
        results = functional.linear(active, down) * choice.weights[who, place].unsqueeze(-1)
        mixed = mixed.index_add(0, who, results.to(mixed.dtype))
    return mixed
