"""Int8 arithmetic as operators of torch: `int8_plain`'s functions, fast on every device.

They are operators, and not mere functions, so that torch.compile takes them as they are, fake
tensors get their shapes, the profiler shows them by name, and FlopCounterMode counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

SCHEMAS = {
    "quantize_rowwise": "(Tensor x) -> (Tensor, Tensor)",
    "quantize_columnwise_transpose": "(Tensor x) -> (Tensor, Tensor)",
    "quantize_global": "(Tensor x) -> (Tensor, Tensor)",
    "quantize_global_transpose": "(Tensor x) -> (Tensor, Tensor)",
    "dequantize_rowwise": "(Tensor q, Tensor scales, ScalarType dtype) -> Tensor",
    "multiply": "(Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias, "
    "ScalarType dtype) -> Tensor",
}
MODULES = {
    "CPU": "flopwatch.layers.kernels.int8_cpu",
    "CUDA": "flopwatch.layers.kernels.int8_triton",
}
"""Where each device's versions are, by torch's name of the device."""

_library = torch.library.Library("flopwatch", "DEF")


def _define(name: str, schema: str) -> None:
    _library.define(f"int8_{name}{schema}")
    for device, home in MODULES.items():
        _library.impl(f"int8_{name}", _load_late(home, name), device)
    torch.library.register_fake(f"flopwatch::int8_{name}", getattr(_Fake, name), lib=_library)


def _load_late(home: str, name: str) -> Callable[..., Any]:
    """The function of that module, imported by the first call: Triton is not everywhere."""

    def call(*arguments: Any) -> Any:
        module: ModuleType = import_module(home)
        return getattr(module, name)(*arguments)

    return call


class _Fake:
    """Shapes and dtypes of the results, for tensors without content."""

    @staticmethod
    def quantize_rowwise(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)

    @staticmethod
    def quantize_columnwise_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
        return _Fake.quantize_rowwise(x.t())

    @staticmethod
    def quantize_global(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape, dtype=torch.int8), x.new_empty((), dtype=torch.float32)

    @staticmethod
    def quantize_global_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
        return _Fake.quantize_global(x.t())

    @staticmethod
    def dequantize_rowwise(q: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        return q.new_empty(q.shape, dtype=dtype)

    @staticmethod
    def multiply(
        a: Tensor,
        b: Tensor,
        a_scales: Tensor,
        b_scales: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


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
