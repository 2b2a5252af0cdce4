"""The operations of an int8 linear layer, each by itself, under the names that they have in the
published comparison (arXiv 2304.13013).

There every operation is timed alone, on tensors that are made beforehand, and times are added up to
what a layer would take if there were nothing around its operations. Here a list of operations is a
workload with a phase for each, so that the time of a run is that sum. x is (tokens, inputs), w
(outputs, inputs) and g, the gradient of the output, (tokens, outputs); there is no bias, and
autograd has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from flopwatch.layers import int8_ops, int8_plain
from flopwatch.layers.layer_workload import Setting, list_int8_notes, share_inputs
from flopwatch.records.published.published_switchback import CASTS, STANDARD, SUMS
from flopwatch.suites.workload import Workload

Quantized = tuple[Tensor, Tensor]
"""Whole numbers and their scales."""
Operation = Callable[[], object]


@dataclass(frozen=True)
class Tensors:
    """What the operations work on, and whose arithmetic they use."""

    x: Tensor
    w: Tensor
    g: Tensor
    int8: Any = int8_ops
    """A module with the functions of `int8_plain`."""
    cast: Callable[[Tensor], Tensor] = partial(Tensor.to, dtype=torch.int8)

    @cached_property
    def x_rows(self) -> Quantized:
        quantized: Quantized = self.int8.quantize_rowwise(self.x)
        return quantized

    @cached_property
    def g_rows(self) -> Quantized:
        quantized: Quantized = self.int8.quantize_rowwise(self.g)
        return quantized

    def multiply(self, a: Quantized, b: Quantized) -> Operation:
        """a @ b.T"""
        return partial(self.int8.multiply, a[0], b[0].t(), a[1], b[1], None, self.x.dtype)


PARTS: dict[str, Callable[[Tensors], Operation]] = {
    "standard_fwd": lambda t: partial(torch.mm, t.x, t.w.t()),
    "standard_gx": lambda t: partial(torch.mm, t.g, t.w),
    "standard_gw": lambda t: partial(torch.mm, t.g.t(), t.x),
    "x_quantize_rowwise": lambda t: partial(t.int8.quantize_rowwise, t.x),
    "g_quantize_rowwise": lambda t: partial(t.int8.quantize_rowwise, t.g),
    "w_quantize_rowwise": lambda t: partial(t.int8.quantize_rowwise, t.w),
    "w_quantize_colwise_transpose": lambda t: partial(t.int8.quantize_columnwise_transpose, t.w),
    "w_quantize_global": lambda t: partial(t.int8.quantize_global, t.w),
    "w_quantize_global_transpose": lambda t: partial(t.int8.quantize_global_transpose, t.w),
    "rowwise_fwd": lambda t: t.multiply(t.x_rows, t.int8.quantize_rowwise(t.w)),
    "rowwise_bwd": lambda t: t.multiply(t.g_rows, t.int8.quantize_columnwise_transpose(t.w)),
    "global_fwd": lambda t: t.multiply(t.x_rows, t.int8.quantize_global(t.w)),
    "global_bwd": lambda t: t.multiply(t.g_rows, t.int8.quantize_global_transpose(t.w)),
    "cast_x": lambda t: partial(t.cast, t.x),
    "cast_w": lambda t: partial(t.cast, t.w),
    "cast_g": lambda t: partial(t.cast, t.g),
}
"""By its published name: makes the tensors that an operation needs, and gives the operation."""
NO_INT8 = {*SUMS[STANDARD], *SUMS[CASTS]}
"""Parts that are no int8 arithmetic."""


def make_workload(
    parts: Sequence[str], tokens: int, shape: tuple[int, int], setting: Setting
) -> Workload:
    """`shape` is in_features x out_features. Workloads of the same sizes share their tensors."""
    made = _make_phases(parts, _share_tensors(tokens, *shape, setting, torch.initial_seed()))
    notes = [] if NO_INT8.issuperset(parts) else list_int8_notes(setting.device)
    return Workload(phases=made, compare="all", conditions=setting.conditions, notes=notes)


def make_reference(
    parts: Sequence[str], tokens: int, shape: tuple[int, int], setting: Setting
) -> Workload:
    """The same in plain arithmetic, and in float32, from the same values."""
    shared = _share_tensors(tokens, *shape, setting, torch.initial_seed())
    x, w, g = (tensor.float() for tensor in (shared.x, shared.w, shared.g))
    plain = Tensors(x, w, g, int8=int8_plain, cast=cast_plainly)
    return Workload(phases=_make_phases(parts, plain), compare="all")


def cast_plainly(x: Tensor) -> Tensor:
    return x.trunc().to(torch.int8)


def _make_phases(parts: Sequence[str], tensors: Tensors) -> dict[str, Callable[..., object]]:
    return {part: _ignore_input(PARTS[part](tensors)) for part in parts}


def _ignore_input(operation: Operation) -> Callable[..., object]:
    """A phase is given what the one before it returned."""
    return lambda *_: operation()


@lru_cache(maxsize=1)
def _share_tensors(tokens: int, inputs: int, outputs: int, setting: Setting, seed: int) -> Tensors:
    x, g = share_inputs(tokens, inputs, outputs, setting, seed)
    torch.manual_seed(seed)
    w = torch.randn(outputs, inputs, device=setting.device, dtype=setting.torch_dtype)
    return Tensors(x.detach(), w, g)
