"""Causal self-attention without projections, as it is written down and as torch has it; and as a
workload, forward and backward.

Queries, keys and values are (batch, heads, seq_len, head_size). They, the mask and the gradient of
the output are made once, and all variants of a case share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flopwatch.devices.matmul_rates import describe_emulation
from flopwatch.layers.layer_workload import Setting
from flopwatch.suites.workload import Workload
from flopwatch.worker.compilation import Compilation
from flopwatch.worker.instruments import region

SLICE_SCORES = 1 << 23
"""So many scores does the reference compute at a time."""


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Two matmuls with a softmax between them, each step a tensor of its own. The mask is true
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
    that they may look at: for sequences whose scores do not fit."""
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
    batch, heads, seq_len, _ = q.shape
    step = max(1, SLICE_SCORES // seq_len)
    for sequence in range(batch):
        for head in range(heads):
            for start in range(0, seq_len, step):
                stop = min(start + step, seq_len)
                yield (sequence, head), slice(start, stop), slice(0, stop)


Shape = tuple[int, int, int, int]
"""Batch, heads, seq_len, head_size."""
Facts = Mapping[str, float] | Callable[[], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor
    grad: Tensor
    """Of the output."""

    @property
    def leaves(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k, "v": self.v}


def make_workload(variant: str, shape: Shape, setting: Setting) -> Workload:
    inputs = share_inputs(shape, setting, torch.initial_seed())
    q, k, v, mask = inputs.q, inputs.k, inputs.v, inputs.mask
    if variant == "compiled":
        compilation = Compilation(setting.device)
        compiled = torch.compile(attend_plainly, dynamic=False)
        return _make_phases(partial(compiled, q, k, v, mask), inputs, setting, compilation.finish)
    forwards: dict[str, Callable[[], Tensor]] = {
        "plain": partial(attend_plainly, q, k, v, mask),
        "sdpa": partial(attend_fused, q, k, v),
    }
    return _make_phases(forwards[variant], inputs, setting, {})


def _make_phases(
    forward: Callable[[], Tensor], inputs: Inputs, setting: Setting, facts: Facts
) -> Workload:
    emulation = describe_emulation(setting.dtype, setting.device)

    def clear_gradients() -> None:
        for tensor in inputs.leaves.values():
            tensor.grad = None

    def backward(output: Tensor) -> None:
        output.backward(inputs.grad)

    return Workload(
        phases={"forward": forward, "backward": backward},
        gradients=inputs.leaves,
        reset=clear_gradients,
        conditions=setting.conditions,
        facts=facts,
        notes=[] if emulation is None else [emulation],
    )


def make_reference(shape: Shape, setting: Setting) -> Workload:
    """The plain formula in float32, from the same values."""
    made = share_reference(shape, setting, torch.initial_seed())
    # Its gradients are there already; tensors that carry them are all that is missing.
    leaves = {name: torch.empty_like(made.output) for name in ("q", "k", "v")}

    def backward(output: Tensor) -> None:
        for leaf, grad in zip(leaves.values(), made[1:], strict=True):
            leaf.grad = grad

    return Workload(phases={"forward": lambda: made.output, "backward": backward}, gradients=leaves)


@lru_cache(maxsize=1)
def share_inputs(shape: Shape, setting: Setting, seed: int) -> Inputs:
    """The same ones for the same seed."""
    torch.manual_seed(seed)
    q, k, v, grad = (
        torch.randn(shape, device=setting.device).to(setting.torch_dtype) for _ in range(4)
    )
    mask = make_mask(shape[2], shape[2], setting.device)
    leaves = {name: tensor.requires_grad_() for name, tensor in {"q": q, "k": k, "v": v}.items()}
    return Inputs(**leaves, mask=mask, grad=grad)


@lru_cache(maxsize=1)
def share_reference(shape: Shape, setting: Setting, seed: int) -> Attended:
    """Computed once for all variants: of long sequences it takes a minute."""
    inputs = share_inputs(shape, setting, seed)
    tensors = (inputs.q, inputs.k, inputs.v, inputs.grad)
    return attend_in_slices(*(tensor.detach().float() for tensor in tensors))
