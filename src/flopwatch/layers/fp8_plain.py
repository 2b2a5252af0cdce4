"""Float8 arithmetic, plain: what `torch._scaled_mm` must agree with, and what stands in for it on
devices that do not compute in float8.

A matrix x is kept as float8 numbers q with scales: x ~ q * scale. The scale belongs to a row, or to
the whole matrix, and is its largest magnitude / the largest number of the float8 dtype, in float32
whatever the dtype of x. q is x / scale, rounded to the nearest, halves to even.

What is not finite does not vanish: a row (matrix) with a NaN or an infinity in it becomes NaN.
Where nothing is larger than SMALLEST (all zeros, above all), q is as if SMALLEST were the largest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flopwatch.layers.swapping import without_autocast

FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
"""Of activations and weights, which need digits; of gradients, which need range."""
SMALLEST = 2.0**-100
"""So that no scale is 0, and no quotient too large for float32."""

Quantized = tuple[Tensor, Tensor]
"""Float8 numbers and their scales: (rows, 1), or (1, 1) where there is one for all."""


def quantize_rowwise(x: Tensor, dtype: torch.dtype) -> Quantized:
    """(rows, columns) with a scale for every row."""
    magnitudes = x.abs()
    largest = magnitudes.amax(1, keepdim=True) if x.shape[1] else magnitudes.sum(1, keepdim=True)
    return _divide(x, largest, dtype)


def quantize_tensorwise(x: Tensor, dtype: torch.dtype) -> Quantized:
    """(rows, columns) with one scale."""
    magnitudes = x.abs()
    return _divide(x, (magnitudes.amax() if x.numel() else magnitudes.sum()).view(1, 1), dtype)


def _divide(x: Tensor, largest: Tensor, dtype: torch.dtype) -> Quantized:
    scales = largest.float().clamp(min=SMALLEST) / torch.finfo(dtype).max
    return (x.float() / scales).to(dtype), scales


QUANTIZE = {"rowwise": quantize_rowwise, "tensorwise": quantize_tensorwise}
"""By what a layer's scales are called."""


def multiply(a: Quantized, b: Quantized, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The numbers that a @ b.T stands for, and the bias, for a (m, k) and b (n, k); multiplied and
    added up in float32, which holds every product of two float8 numbers exactly."""
    with without_autocast(a[0].device.type):
        product = (a[0].float() @ b[0].float().t()) * a[1] * b[1].t()
    return (product if bias is None else product + bias.float()).to(dtype)
