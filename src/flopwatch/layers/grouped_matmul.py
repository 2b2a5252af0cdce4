"""Matmuls of experts: rows that are sorted by expert, each times the matrix of its own.

    y[r] = x[r] @ weight[e].t()    for the rows r of expert e, from ends[e - 1] up to ends[e]

They are operators, and not mere functions, so that torch.compile takes them as they are, fake
tensors get their shapes in every dtype, activation checkpointing can keep their results, and
FlopCounterMode counts them: of torch's own ``_grouped_mm`` it counts none.

An expert without rows has a gradient of zeros, not none: all ranks average the same gradients.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from flopwatch.layers.swapping import cast_for_autocast

ALIGNED_BYTES = 16
"""Rows of all operands of torch's kernel begin at multiples of it."""


def multiply_groups(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`x` is (rows, inputs), `weight` (experts, outputs, inputs), and `ends` has for each expert
    the row after its last one, in int32."""
    x, weight, _ = cast_for_autocast(x, weight, None)
    y: Tensor = torch.ops.flopwatch.grouped_matmul(x, weight, ends)
    return y


def multiply_plainly(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Expert by expert."""
    x, weight, _ = cast_for_autocast(x, weight, None)
    return torch.cat([part @ each.t() for part, each in zip(_split(x, ends), weight, strict=True)])


@torch.library.custom_op(
    "flopwatch::grouped_matmul",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor ends) -> Tensor",
)
def _multiply(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if has_kernel(x.device.type, x.dtype) and _are_aligned(x.dtype, *weight.shape[1:]):
        y: Tensor = torch._grouped_mm(x.contiguous(), weight.mT, offs=ends)
        return y
    return torch.cat([part @ each.t() for part, each in zip(_split(x, ends), weight, strict=True)])


@_multiply.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.custom_op(
    "flopwatch::grouped_matmul_weight_gradient",
    mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor ends) -> Tensor",
)
def _find_weight_gradient(gradient: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    if has_kernel(x.device.type, x.dtype) and _are_aligned(x.dtype, gradient.shape[1], x.shape[1]):
        found: Tensor = torch._grouped_mm(gradient.contiguous().t(), x.contiguous(), offs=ends)
        return found
    pairs = zip(_split(gradient, ends), _split(x, ends), strict=True)
    return torch.stack([of_y.t() @ of_x for of_y, of_x in pairs])


@_find_weight_gradient.register_fake
def _(gradient: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], gradient.shape[1], x.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _go_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    of_x, of_weight, _ = ctx.needs_input_grad
    return (
        torch.ops.flopwatch.grouped_matmul(gradient, weight.mT, ends) if of_x else None,
        torch.ops.flopwatch.grouped_matmul_weight_gradient(gradient, x, ends)
        if of_weight
        else None,
        None,
    )


_multiply.register_autograd(_go_back, setup_context=_keep)


@register_flop_formula(torch.ops.flopwatch.grouped_matmul)
def _count(x: Any, weight: Any, ends: Any, *, out_shape: Any = None, **_: Any) -> int:
    rows, inputs = x
    return 2 * int(rows) * int(inputs) * int(weight[1])


@register_flop_formula(torch.ops.flopwatch.grouped_matmul_weight_gradient)
def _count_gradient(gradient: Any, x: Any, ends: Any, *, out_shape: Any = None, **_: Any) -> int:
    rows, inputs = x
    return 2 * int(rows) * int(inputs) * int(gradient[1])


@cache
def has_kernel(device: str, dtype: torch.dtype) -> bool:
    """Whether torch multiplies groups there, which depends on its version, the device and the
    dtype: it is tried once. Else experts are multiplied one after the other."""
    if not hasattr(torch, "_grouped_mm"):
        return False
    x, weight = (
        torch.ones(*shape, device=device, dtype=dtype) for shape in ((16, 16), (2, 16, 16))
    )
    ends = torch.tensor([0, 16], device=device, dtype=torch.int32)
    try:
        torch._grouped_mm(x, weight.mT, offs=ends)
        torch._grouped_mm(x.t(), x, offs=ends)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _are_aligned(dtype: torch.dtype, *widths: int) -> bool:
    return all(width * dtype.itemsize % ALIGNED_BYTES == 0 for width in widths)


def _split(rows: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
    return rows.split(ends.diff(prepend=ends.new_zeros(1)).tolist())
