"""SwitchBack, plain: its output and all its gradients, written down step by step.

What `SwitchBack` must agree with: the whole numbers exactly, the rest to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flopwatch.layers import int8_plain as int8
from flopwatch.layers.switchback_layer import Recipe


@dataclass(frozen=True, kw_only=True)
class Results:
    output: Tensor
    grad_x: Tensor
    grad_weight: Tensor
    grad_bias: Tensor


def compute(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, recipe: Recipe
) -> Results:
    """For x (tokens, in), weight (out, in) and grad (tokens, out), the gradient of the output."""
    dtype = x.dtype
    x_int8, x_scales = int8.quantize_rowwise(x)
    grad_int8, grad_scales = int8.quantize_rowwise(grad)
    if recipe.scales == "global":
        weight_int8, weight_scales = int8.quantize_global(weight)
        turned_int8, turned_scales = int8.quantize_global_transpose(weight)
    else:
        weight_int8, weight_scales = int8.quantize_rowwise(weight)
        turned_int8, turned_scales = int8.quantize_columnwise_transpose(weight)
    kept_x = x if recipe.save == "inputs" else int8.dequantize_rowwise(x_int8, x_scales, dtype)
    return Results(
        output=int8.multiply(x_int8, weight_int8.t(), x_scales, weight_scales, bias, dtype),
        grad_x=int8.multiply(grad_int8, turned_int8.t(), grad_scales, turned_scales, None, dtype),
        grad_weight=_multiply_for_weight(grad, kept_x, recipe),
        grad_bias=grad.double().sum(0).to(dtype),
    )


def _multiply_for_weight(grad: Tensor, x: Tensor, recipe: Recipe) -> Tensor:
    if recipe.weight_gradient == "standard":
        return (grad.double().t() @ x.double()).to(x.dtype)
    rows, scales = int8.quantize_columnwise_transpose(grad)
    columns, column_scales = int8.quantize_columnwise_transpose(x)
    return int8.multiply(rows, columns.t(), scales, column_scales, None, x.dtype)
