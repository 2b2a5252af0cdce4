"""Int8 arithmetic as operators of torch: `int8_plain`'s functions, fast on every device.

They are operators, and not mere functions, so that torch.compile takes them as they are, fake
tensors get their shapes, the profiler shows them by name, and FlopCounterMode counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from flopwatch.devices.kinds import is_host
from flopwatch.errors import LayerError
from flopwatch.layers import int8_plain
from flopwatch.layers.kernels import triton_support

SCHEMAS = {
    "quantize_rowwise": "(Tensor x) -> (Tensor, Tensor)",
    "quantize_columnwise_transpose": "(Tensor x) -> (Tensor, Tensor)",
    "quantize_global": "(Tensor x) -> (Tensor, Tensor)",
    "quantize_global_transpose": "(Tensor x) -> (Tensor, Tensor)",
    "dequantize_rowwise": "(Tensor q, Tensor scales, ScalarType dtype) -> Tensor",
    "multiply": "(Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias, "
    "ScalarType dtype) -> Tensor",
}
HOME = "flopwatch.layers.kernels"
HOST_MODULE, TRITON_MODULE, EAGER_MODULE = "int8_cpu", "int8_triton", "int8_eager"
"""Where the versions are for CPUs, for devices that Triton compiles for, and for all others."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_library = torch.library.Library("flopwatch", "DEF")


def _define(name: str, schema: str) -> None:
    _library.define(f"int8_{name}{schema}")
    _library.impl(f"int8_{name}", _dispatch(name), "CompositeExplicitAutograd")
    # On tensors without content, the plain version gives the shapes and dtypes of the results.
    torch.library.register_fake(f"flopwatch::int8_{name}", getattr(int8_plain, name), lib=_library)


def _dispatch(name: str) -> Callable[..., Any]:
    """The function of the device's module, imported by the first call: Triton is not everywhere."""

    def call(*arguments: Any) -> Any:
        CHECKS[name](*arguments)
        module = import_module(f"{HOME}.{find_module(arguments[0].device.type)}")
        return getattr(module, name)(*arguments)

    return call


def find_module(device: str) -> str:
    """That computes on this kind of device."""
    if is_host(device):
        return HOST_MODULE
    return EAGER_MODULE if triton_support.find_obstacle(device) else TRITON_MODULE


def describe(device: str) -> str | None:
    """What a reader of timings should know about how int8 is computed on such a device."""
    if is_host(device):
        from flopwatch.layers.kernels import int8_cpu

        return int8_cpu.describe()
    return triton_support.describe(device, "int8 layers")


def _check_matrix(x: Tensor) -> None:
    if x.dim() != 2 or x.dtype not in DTYPES:
        raise LayerError(
            f"int8 arithmetic quantises matrices of float32, bfloat16 or float16, not "
            f"{x.dtype} of shape {tuple(x.shape)}"
        )


def _check_int8(q: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
    if q.dim() != 2 or q.dtype != torch.int8 or dtype not in DTYPES:
        raise LayerError(
            f"int8 arithmetic goes from matrices of int8 to float32, bfloat16 or float16, not from "
            f"{q.dtype} of shape {tuple(q.shape)} to {dtype}"
        )
    if scales.shape != q.shape[:1] or scales.dtype != torch.float32:
        raise LayerError(
            f"{len(q)} rows need as many scales in float32, not {tuple(scales.shape)} in "
            f"{scales.dtype}"
        )


def _check_matmul(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> None:
    _check_int8(a, a_scales, dtype)
    _check_int8(b.t(), b_scales.expand(b.shape[-1]) if b_scales.dim() == 0 else b_scales, dtype)
    if a.shape[1] != b.shape[0]:
        raise LayerError(f"{tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied")
    if bias is not None and bias.shape != b.shape[1:]:
        raise LayerError(f"the bias has shape {tuple(bias.shape)}, the result {b.shape[1]} columns")


CHECKS: dict[str, Callable[..., None]] = {
    "quantize_rowwise": _check_matrix,
    "quantize_columnwise_transpose": _check_matrix,
    "quantize_global": _check_matrix,
    "quantize_global_transpose": _check_matrix,
    "dequantize_rowwise": _check_int8,
    "multiply": _check_matmul,
}
"""What is wrong here, the kernels would not notice: they are given addresses."""


for _name, _schema in SCHEMAS.items():
    _define(_name, _schema)


@register_flop_formula(torch.ops.flopwatch.int8_multiply)
def _count_flops(a_shape: Any, b_shape: Any, *_: Any, **__: Any) -> int:
    return 2 * a_shape[0] * a_shape[1] * b_shape[1]


_ops = torch.ops.flopwatch
quantize_rowwise: Callable[[Tensor], tuple[Tensor, Tensor]] = _ops.int8_quantize_rowwise
quantize_columnwise_transpose: Callable[[Tensor], tuple[Tensor, Tensor]] = (
    _ops.int8_quantize_columnwise_transpose
)
quantize_global: Callable[[Tensor], tuple[Tensor, Tensor]] = _ops.int8_quantize_global
quantize_global_transpose: Callable[[Tensor], tuple[Tensor, Tensor]] = (
    _ops.int8_quantize_global_transpose
)
dequantize_rowwise: Callable[[Tensor, Tensor, torch.dtype], Tensor] = _ops.int8_dequantize_rowwise
multiply: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, torch.dtype], Tensor] = (
    _ops.int8_multiply
)
