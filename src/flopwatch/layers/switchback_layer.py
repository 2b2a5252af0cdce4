"""SwitchBack: a linear layer that multiplies int8 where training can bear it. See arXiv 2304.13013.

    >>> import torch
    >>> layer = SwitchBack(8, 12)
    >>> layer(torch.ones(2, 3, 8)).shape
    torch.Size([2, 3, 12])

A linear layer computes three matmuls: its output, the gradient of its input, and the gradient of
its weight. The first two run over the features, and are computed in int8. The third runs over all
tokens of a batch, where the errors of int8 would add up most, and stays in standard precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flopwatch.devices.kinds import is_host
from flopwatch.errors import LayerError
from flopwatch.layers import int8_ops, int8_plain
from flopwatch.layers.registry import check_switchback
from flopwatch.layers.swapping import DropIn, cast_for_autocast

PART_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is quantised, and how."""

    scales: str
    """Of the weight: ``rowwise``, one for each output, and for the input's gradient one for each
    input; or ``global``, one for all. Those of activations and gradients: one a token."""
    save: str
    """For the backward pass: the ``inputs`` as they are, or as ``int8``."""
    weight_gradient: str
    """Computed in ``standard`` precision, or in ``int8`` as well."""


class SwitchBack(DropIn):
    """A drop-in for `nn.Linear`, with the same parameters.

    `scales` says how the weight is quantised, ``rowwise`` or ``global``. ``save="int8"`` keeps the
    quantised activations for the backward pass, a quarter of the memory in float32, instead of
    the activations. ``weight_gradient="int8"`` computes the third matmul in int8 too, in the way
    of LLM.int8(): it is here to be compared with.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        scales: str = "rowwise",
        save: str = "inputs",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        weight_gradient: str = "standard",
    ) -> None:
        check_switchback(scales=scales, save=save, weight_gradient=weight_gradient)
        _check_length(max(in_features, out_features), "features")
        super().__init__(
            in_features,
            out_features,
            weight_shape=(out_features, in_features),
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.recipe = Recipe(scales=scales, save=save, weight_gradient=weight_gradient)

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> Self:
        """A layer with the very parameters of a dense one."""
        made = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            device="meta",
            dtype=linear.weight.dtype,
            **options,
        )
        made.weight, made.bias = linear.weight, linear.bias  # type: ignore[assignment]
        return made.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.weight is not None else self._infer(x)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        _check_dtype(x.dtype)
        if self.recipe.weight_gradient == "int8":
            _check_length(len(x), "tokens")
        y: Tensor = _Matmul.apply(x, weight, bias, self.recipe)
        return y

    def prepare_for_inference(self) -> Self:
        """Quantise the weight for good. The layer then holds the weight as int8 only, and can no
        longer be trained."""
        if self.weight is None:
            return self
        _check_dtype(self.weight.dtype)
        weight, scales = quantize_weight(self.weight.detach(), self.recipe)
        self.register_buffer("weight_int8", weight)
        # As whole numbers, which .half() and the like leave alone.
        self.register_buffer("weight_scales", scales.view(torch.int32))
        self.register_parameter("weight", None)
        if self.bias is not None:
            self.bias.requires_grad_(False)
        return self

    def extra_repr(self) -> str:
        recipe = self.recipe
        prepared = ", prepared for inference" if self.weight is None else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, scales={recipe.scales}, save={recipe.save}, "
            f"weight_gradient={recipe.weight_gradient}{prepared}"
        )

    def _infer(self, x: Tensor) -> Tensor:
        self._check(x)
        if torch.is_grad_enabled() and x.requires_grad:
            raise LayerError(
                "the layer was prepared for inference and has no gradients; call it under "
                "torch.no_grad(), or train a layer that is not prepared"
            )
        x, _, bias = cast_for_autocast(x, x, self.bias)
        _check_dtype(x.dtype)
        tokens = math.prod(x.shape[:-1])
        rows, scales = int8_ops.quantize_rowwise(x.reshape(tokens, self.in_features))
        weight: Tensor = self.weight_int8  # type: ignore[assignment]
        weight_scales: Tensor = self.weight_scales  # type: ignore[assignment]
        y = int8_ops.multiply(
            rows, weight.t(), scales, weight_scales.view(torch.float32), bias, x.dtype
        )
        return y.reshape(*x.shape[:-1], self.out_features)


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in int8_ops.DTYPES:
        raise LayerError(
            f"SwitchBack computes in float32, bfloat16 or float16, not in {dtype}; convert layer "
            "and input with .to()"
        )


def _check_length(length: int, what: str) -> None:
    if length > int8_plain.LONGEST:
        raise LayerError(
            f"sums over {length} {what} may not fit into int32; int8 layers take up to "
            f"{int8_plain.LONGEST}"
        )


def quantize_weight(weight: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """For the forward matmul."""
    if recipe.scales == "global":
        return int8_ops.quantize_global(weight)
    return int8_ops.quantize_rowwise(weight)


def quantize_weight_back(weight: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """For the input's gradient: (out, in) with a scale for every input, or one for all. It is
    stored by columns, as GPUs multiply it."""
    if recipe.scales == "global":
        transposed, scales = int8_ops.quantize_global_transpose(weight)
    else:
        transposed, scales = int8_ops.quantize_columnwise_transpose(weight)
    return transposed.t(), scales


class _Matmul(torch.autograd.Function):
    """x @ weight.T + bias, two of its three matmuls in int8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Recipe) -> Tensor:
        rows, scales = int8_ops.quantize_rowwise(x)
        weight_int8, weight_scales = quantize_weight(weight, recipe)
        ctx.recipe, ctx.dtype = recipe, x.dtype
        ctx.save_for_backward(
            *_choose_kept_x(ctx, x, (rows, scales)),
            *_choose_kept_weight(ctx, weight, (weight_int8, weight_scales)),
        )
        return int8_ops.multiply(rows, weight_int8.t(), scales, weight_scales, bias, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, x_scales, weight, weight_scales = ctx.saved_tensors
        grad = grad.contiguous()
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = None
        if needs_x:
            rows, scales = int8_ops.quantize_rowwise(grad)
            if weight_scales is None:
                weight, weight_scales = quantize_weight_back(weight, ctx.recipe)
            grad_x = int8_ops.multiply(rows, weight, scales, weight_scales, None, ctx.dtype)
        if needs_weight:
            grad_weight = multiply_for_weight(grad, x, x_scales, ctx.recipe)
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


Kept = tuple[Tensor | None, Tensor | None]
"""A tensor and its scales for the backward pass: no scales where it is not quantised, neither where
it is not needed."""


def _choose_kept_x(ctx: Any, x: Tensor, quantized: tuple[Tensor, Tensor]) -> Kept:
    if not ctx.needs_input_grad[1]:  # only the weight's gradient is computed from it
        return None, None
    return quantized if ctx.recipe.save == "int8" else (x, None)


def _choose_kept_weight(ctx: Any, weight: Tensor, quantized: tuple[Tensor, Tensor]) -> Kept:
    if not ctx.needs_input_grad[0]:
        return None, None
    # On a CPU, one int8 weight serves both matmuls; a GPU wants its own order for each.
    shares = ctx.recipe.scales == "global" and is_host(weight.device.type)
    return quantized if shares else (weight, None)


def multiply_for_weight(grad: Tensor, x: Tensor, x_scales: Tensor | None, recipe: Recipe) -> Tensor:
    """grad.T @ x, the weight's gradient, (out, in), where x may have been kept as int8."""
    if recipe.weight_gradient == "standard":
        return grad.t() @ x if x_scales is None else _multiply_in_parts(grad, x, x_scales)
    if x_scales is not None:
        x = int8_ops.dequantize_rowwise(x, x_scales, grad.dtype)
    rows, scales = int8_ops.quantize_columnwise_transpose(grad)
    columns, column_scales = int8_ops.quantize_columnwise_transpose(x)
    return int8_ops.multiply(rows, columns.t(), scales, column_scales, None, x.dtype)


def _multiply_in_parts(grad: Tensor, x: Tensor, x_scales: Tensor) -> Tensor:
    """For some tokens at a time: all activations at once are what int8 was to spare the memory.
    Sums of short dtypes would be rounded after every part, so that these are made at once."""
    tokens = len(x)
    if grad.dtype != torch.float32 or torch.compiler.is_compiling() or tokens <= PART_TOKENS:
        return grad.t() @ int8_ops.dequantize_rowwise(x, x_scales, grad.dtype)
    total = grad.new_zeros(grad.shape[1], x.shape[1])
    for first in range(0, tokens, PART_TOKENS):
        part = slice(first, first + PART_TOKENS)
        wide = int8_ops.dequantize_rowwise(x[part], x_scales[part], grad.dtype)
        total.addmm_(grad[part].t(), wide)
    return total


@dataclass(frozen=True, kw_only=True)
class Results:
    """Of a layer: its output and all its gradients."""

    output: Tensor
    grad_x: Tensor
    grad_weight: Tensor
    grad_bias: Tensor


def compute_plainly(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, recipe: Recipe
) -> Results:
    """What `SwitchBack` must agree with, step by step: whole numbers exactly, the rest to rounding.

    For x (tokens, in), weight (out, in) and grad (tokens, out), the gradient of the output.
    """
    dtype = x.dtype
    x_int8, x_scales = int8_plain.quantize_rowwise(x)
    grad_int8, grad_scales = int8_plain.quantize_rowwise(grad)
    if recipe.scales == "global":
        weight_int8, weight_scales = int8_plain.quantize_global(weight)
        transposed_int8, transposed_scales = int8_plain.quantize_global_transpose(weight)
    else:
        weight_int8, weight_scales = int8_plain.quantize_rowwise(weight)
        transposed_int8, transposed_scales = int8_plain.quantize_columnwise_transpose(weight)
    kept_x = (
        x if recipe.save == "inputs" else int8_plain.dequantize_rowwise(x_int8, x_scales, dtype)
    )
    return Results(
        output=int8_plain.multiply(x_int8, weight_int8.t(), x_scales, weight_scales, bias, dtype),
        grad_x=int8_plain.multiply(
            grad_int8, transposed_int8.t(), grad_scales, transposed_scales, None, dtype
        ),
        grad_weight=_multiply_plainly_for_weight(grad, kept_x, recipe),
        grad_bias=grad.double().sum(0).to(dtype),
    )


def _multiply_plainly_for_weight(grad: Tensor, x: Tensor, recipe: Recipe) -> Tensor:
    if recipe.weight_gradient == "standard":
        return (grad.double().t() @ x.double()).to(x.dtype)
    rows, scales = int8_plain.quantize_columnwise_transpose(grad)
    columns, column_scales = int8_plain.quantize_columnwise_transpose(x)
    return int8_plain.multiply(rows, columns.t(), scales, column_scales, None, x.dtype)
