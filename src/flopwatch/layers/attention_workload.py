"""Causal attention as a workload: forward and backward.

Queries, keys, values, the mask and the gradient of the output are made once, and all variants of
a case share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from flopwatch.engine.compilation import Compilation
from flopwatch.engine.rate import describe_emulation
from flopwatch.layers.attention import (
    Attended,
    attend_fused,
    attend_in_slices,
    attend_plainly,
    make_mask,
)
from flopwatch.layers.workload import Setting
from flopwatch.suite import Workload

Shape = tuple[int, int, int, int]
"""Batch, heads, context, head_size."""
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
    """Computed once for all variants: at long contexts it takes a minute."""
    inputs = share_inputs(shape, setting, seed)
    tensors = (inputs.q, inputs.k, inputs.v, inputs.grad)
    return attend_in_slices(*(tensor.detach().float() for tensor in tensors))
