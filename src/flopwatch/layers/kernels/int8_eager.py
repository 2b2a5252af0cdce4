"""Int8 arithmetic on accelerators that Triton does not compile for: eager torch, a few passes each.

Whole numbers are multiplied by `torch._int_mm` where the device has it, and otherwise as float32,
in parts so short that the sums are exact.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from flopwatch.layers.int8_plain import (
    dequantize_rowwise,
    quantize_columnwise_transpose,
    quantize_global,
    quantize_global_transpose,
    quantize_rowwise,
    scale_sums,
)
from flopwatch.layers.swapping import without_autocast

__all__ = [
    "dequantize_rowwise",
    "multiply",
    "quantize_columnwise_transpose",
    "quantize_global",
    "quantize_global_transpose",
    "quantize_rowwise",
]

EXACT_LENGTH = 2**24 // 127**2
"""So many products of int8 add up to a number that float32 holds exactly."""
MULTIPLE, FEWEST_ROWS = 8, 17
"""What `torch._int_mm` demands of sizes on GPUs."""


def multiply(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    sums = torch._int_mm(a.contiguous(), b) if can_multiply(a, b) else multiply_as_floats(a, b)
    return scale_sums(sums, a_scales, b_scales, bias).to(dtype)


def can_multiply(a: Tensor, b: Tensor) -> bool:
    """Whether `torch._int_mm` takes these."""
    sizes_fit = len(a) >= FEWEST_ROWS and not any(size % MULTIPLE for size in b.shape)
    return sizes_fit and b.numel() > 0 and _has_int_mm(a.device)


@cache
def _has_int_mm(device: torch.device) -> bool:
    ones = torch.ones(32, 32, dtype=torch.int8, device=device)
    try:
        return bool((torch._int_mm(ones, ones) == len(ones)).all())
    except (NotImplementedError, RuntimeError):
        return False


def multiply_as_floats(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in int32, of sums of at most EXACT_LENGTH products, which are whole numbers of
    float32."""
    sums = torch.zeros(len(a), b.shape[1], dtype=torch.int32, device=a.device)
    with without_autocast(a.device.type):
        for first in range(0, a.shape[1], EXACT_LENGTH):
            part = slice(first, first + EXACT_LENGTH)
            sums += (a[:, part].float() @ b[part].float()).int()
    return sums
