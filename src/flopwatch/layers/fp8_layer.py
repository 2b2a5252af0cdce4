"""Fp8Linear: a linear layer whose three matmuls are computed in float8.

    >>> import torch
    >>> layer = Fp8Linear(16, 32)
    >>> layer(torch.ones(2, 3, 16)).shape
    torch.Size([2, 3, 32])

Activations and weights are rounded to e4m3, the gradient of the output to e5m2 (arXiv 2209.05433).
A scale belongs to what a matmul does not add up over, so that with row-wise scales every matmul
has its own: activations one a token for the output, and one a feature for the weight's gradient.
With one scale for a whole tensor, the same numbers serve both.

On devices that do not compute in float8, CPUs among them, the numbers are rounded all the same and
multiplied in float32 (`fp8_plain`): what is learnt is the same, what is timed is not.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flopwatch.errors import LayerError
from flopwatch.layers import fp8_plain
from flopwatch.layers.fp8_plain import FORWARD, GRADIENT, QUANTIZE, Quantized
from flopwatch.layers.kernels import fp8_scaled
from flopwatch.layers.registry import check_fp8
from flopwatch.layers.swapping import DropIn

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Fp8Linear(DropIn):
    """A drop-in for `nn.Linear`, with the same parameters.

    `scales` says what has a scale of its own: every row of a matmul's operands (``rowwise``), or a
    whole tensor (``tensorwise``), whose activations are then kept for the backward pass as float8.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        scales: str = "rowwise",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_fp8(scales)
        for size, what in ((in_features, "input"), (out_features, "output")):
            if size % fp8_scaled.MULTIPLE:
                raise LayerError(
                    f"{size} {what} features are no multiple of {fp8_scaled.MULTIPLE}, as matmuls "
                    "in float8 need; choose another size, or leave this layer as it is"
                )
        super().__init__(
            in_features,
            out_features,
            weight_shape=(out_features, in_features),
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.scales = scales

    @classmethod
    def from_linear(cls, linear: nn.Linear, scales: str = "rowwise") -> Self:
        """A layer with the very parameters of a dense one."""
        made = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            scales,
            device="meta",
            dtype=linear.weight.dtype,
        )
        made.weight, made.bias = linear.weight, linear.bias  # type: ignore[assignment]
        return made.train(linear.training)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if x.dtype not in DTYPES:
            raise LayerError(
                f"Fp8Linear computes in float32, bfloat16 or float16, not in {x.dtype}; convert "
                "layer and input with .to()"
            )
        y: Tensor = _Matmul.apply(x, weight, bias, self.scales)
        return y

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, scales={self.scales}"
        )


class _Matmul(torch.autograd.Function):
    """x @ weight.T + bias, and its gradients, in float8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scales: str) -> Tensor:
        rows = quantize(x, FORWARD, scales)
        ctx.scales, ctx.dtype = scales, x.dtype
        kept: tuple[Tensor | None, Tensor | None] = (None, None)
        if ctx.needs_input_grad[1]:  # only the weight's gradient is computed from it
            kept = rows if scales == "tensorwise" else (x, None)
        ctx.save_for_backward(*kept, weight if ctx.needs_input_grad[0] else None)
        return multiply(rows, quantize(weight, FORWARD, scales), bias, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, x_scales, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = None
        has_one_scale = x_scales is not None
        if needs_x or has_one_scale:
            rows = quantize(grad, GRADIENT, ctx.scales)
            if needs_x:
                columns = quantize_transposed(weight, FORWARD, ctx.scales)
                grad_x = multiply(rows, columns, None, ctx.dtype)
            if has_one_scale:
                grad_weight = multiply(transpose(rows), transpose((x, x_scales)), None, ctx.dtype)
        if needs_weight and not has_one_scale:
            grad_weight = multiply(
                quantize_transposed(grad, GRADIENT, ctx.scales),
                quantize_transposed(x, FORWARD, ctx.scales),
                None,
                ctx.dtype,
            )
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


def quantize(x: Tensor, dtype: torch.dtype, scales: str) -> Quantized:
    return QUANTIZE[scales](x.contiguous(), fp8_scaled.choose_dtype(dtype, x.device.type))


def quantize_transposed(x: Tensor, dtype: torch.dtype, scales: str) -> Quantized:
    """x.T: its rows are what a matmul over x's rows adds up."""
    return quantize(x.t(), dtype, scales)


def transpose(quantized: Quantized) -> Quantized:
    """Of numbers with one scale; copied, as matmuls want both operands' rows in one piece."""
    values, scale = quantized
    return values.t().contiguous(), scale


def multiply(a: Quantized, b: Quantized, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """a @ b.T"""
    is_empty = not a[0].numel() or not b[0].numel()
    native = not is_empty and fp8_scaled.is_native(a[0].device.type)
    return (fp8_scaled if native else fp8_plain).multiply(a, b, bias, dtype)
