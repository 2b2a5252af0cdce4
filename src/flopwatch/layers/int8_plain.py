"""Int8 arithmetic, plain: what every fast version of it must agree with.

A number x is kept as a whole number q from -127 to 127 with a scale: x ~ q * scale. The scale
belongs to a row, to a column, or to the whole matrix, and is its largest magnitude / 127, in
float32 whatever the dtype. So is all arithmetic here: x is read as float32, and

    q = round(x * (127 / largest)), halves to even.

What is not finite does not vanish: a row (column, matrix) with a NaN or an infinity in it has q = 0
and the scale NaN, so that all that is computed from it is NaN. Where `largest` is less than
SMALLEST (all zeros, above all), q and the scale are 0.

Every function here exists once more for each kind of device, under the same name: for CPUs in
`kernels.int8_cpu`, for GPUs in `kernels.int8_triton`, for all others in `kernels.int8_eager`.
`int8_ops` chooses.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
LONGEST = (2**31 - 1) // LARGEST**2
"""So many products of int8 add up to a number that int32 holds, whatever they are."""
SMALLEST = 2.0**-120
"""Below it, 127 / largest would not fit into float32."""


def quantize_rowwise(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) as int8, and the scales of its rows."""
    largest = find_largest(x, dim=1)
    return _round(x, largest[:, None]), make_scale(largest)


def quantize_columnwise_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) as int8 (columns, rows), and the scales of the columns."""
    return quantize_rowwise(x.t())


def quantize_global(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) as int8, and its one scale, a tensor without dimensions."""
    largest = find_largest(x.flatten(), dim=0)
    return _round(x, largest), make_scale(largest)


def quantize_global_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) as int8 (columns, rows), and its one scale."""
    return quantize_global(x.t())


def dequantize_rowwise(q: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that rows of int8 stand for."""
    return (q.float() * scales[:, None]).to(dtype)


def multiply(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The numbers that a @ b stands for, and the bias.

    `a` is int8 (m, k) with a scale a row; `b` is int8 (k, n), its rows or its columns contiguous,
    with a scale a column or one for all. The sum over k is exact; it is then multiplied by a's
    scale, by b's, and the bias is added, in float32.
    """
    return scale_sums(multiply_exactly(a, b), a_scales, b_scales, bias).to(dtype)


def scale_sums(sums: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None) -> Tensor:
    """What sums of products of whole numbers stand for, and the bias."""
    product = sums.float() * a_scales[:, None] * b_scales
    return product if bias is None else product + bias.float()


def multiply_exactly(a: Tensor, b: Tensor) -> Tensor:
    """a @ b as whole numbers, of int32 in int64: float64 holds every one of them exactly."""
    return (a.double() @ b.double()).long()


def find_largest(x: Tensor, dim: int) -> Tensor:
    """The largest magnitudes, in float32; NaN where something is not finite."""
    magnitudes = x.float().abs()
    if x.shape[dim] == 0:
        return magnitudes.sum(dim)
    largest = magnitudes.amax(dim)
    return torch.where(largest.isfinite(), largest, torch.nan)


def make_scale(largest: Tensor) -> Tensor:
    return torch.where(largest < SMALLEST, 0.0, largest / torch.full_like(largest, LARGEST))


def _round(x: Tensor, largest: Tensor) -> Tensor:
    # Two tensors, since torch divides by numbers in other ways, which round twice.
    q = torch.round(x.float() * (torch.full_like(largest, LARGEST) / largest))
    return torch.where(largest >= SMALLEST, q, 0.0).to(torch.int8).contiguous()
