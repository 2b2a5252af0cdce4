"""Causal self-attention without projections, as it is written down and as torch has it.

Queries, keys and values are (batch, heads, context, head_size).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flopwatch.regions import region

SLICE_SCORES = 1 << 23
"""So many scores does the reference compute at a time."""


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Two products with a softmax between them, each step a tensor of its own. The mask is true
    where a query must not look."""
    with region("attention/scores"):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask, -math.inf)
    with region("attention/softmax"):
        weights = torch.softmax(scores, dim=-1)
    with region("attention/values"):
        return weights.to(v.dtype) @ v  # autocast may have left them wider


def attend_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """By torch's kernel, which never has all scores at once."""
    with region("attention/fused"):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def make_mask(queries: int, keys: int, device: str | torch.device) -> Tensor:
    """True for keys that come after the query; the last query and the last key belong together."""
    ones = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return ones.triu(keys - queries + 1)


class Attended(NamedTuple):
    output: Tensor
    grad_q: Tensor
    grad_k: Tensor
    grad_v: Tensor


def attend_in_slices(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Attended:
    """The plain formula and its gradients, a few queries of one head at a time and only the keys
    that they may look at: for contexts whose scores do not fit."""
    made = Attended(*(torch.zeros_like(tensor) for tensor in (q, q, k, v)))
    for at, rows, keys in _list_slices(q):
        few_q = q[at][rows].detach().requires_grad_()
        few_k, few_v = (tensor[at][keys].detach().requires_grad_() for tensor in (k, v))
        mask = make_mask(rows.stop - rows.start, keys.stop, q.device)
        output = attend_plainly(few_q, few_k, few_v, mask)
        grads = torch.autograd.grad(output, (few_q, few_k, few_v), grad[at][rows])
        made.output[at][rows] = output.detach()
        for total, part, found in zip(made[1:], (rows, keys, keys), grads, strict=True):
            total[at][part] += found
    return made


def _list_slices(q: Tensor) -> Iterator[tuple[tuple[int, int], slice, slice]]:
    """Indices of batch and head, queries, keys."""
    batch, heads, context, _ = q.shape
    step = max(1, SLICE_SCORES // context)
    for sequence in range(batch):
        for head in range(heads):
            for start in range(0, context, step):
                stop = min(start + step, context)
                yield (sequence, head), slice(start, stop), slice(0, stop)
