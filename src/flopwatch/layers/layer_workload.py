"""One linear layer as a workload: forward and backward, with all gradients.

Input, weights and the gradient of the output are made once, so that a sample times the layer and
what it allocates itself: its output, its gradients and its copies. All variants of a case share
input and gradient: they are the largest tensors, and one of each may be all that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from flopwatch.layers import dyad_matmul, int8_ops, registry
from flopwatch.suites.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and in what precision something is computed."""

    device: str
    dtype: str
    autocast: str | None = None

    @property
    def conditions(self) -> dict[str, str]:
        """What a fair comparison must have in common."""
        return {"dtype": self.dtype, "autocast": self.autocast or "off"}

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def output_dtype(self) -> torch.dtype:
        """Of a linear layer's output."""
        dtype: torch.dtype = getattr(torch, self.autocast or self.dtype)
        return dtype

    def cast(self) -> AbstractContextManager[object]:
        """Autocast, if it is wanted."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device, getattr(torch, self.autocast))


def make_workload(spec: str, tokens: int, shape: tuple[int, int], setting: Setting) -> Workload:
    """`shape` is in_features x out_features."""
    x, grad = share_inputs(tokens, *shape, setting, torch.initial_seed())
    layer = _make_layer(spec, shape, setting)

    def forward() -> Tensor:
        with setting.cast():
            y: Tensor = layer(x)
        return y

    made = _make_phases(forward, layer, x, grad, setting)
    kept_bytes = count_kept_bytes(spec, tokens, shape, setting)
    facts = {} if kept_bytes is None else {"kept_for_backward_bytes": kept_bytes}
    return replace(
        made, facts={**made.list_facts(), **facts}, notes=list_notes(spec, setting.device)
    )


FEW = 8


def count_kept_bytes(
    spec: str, tokens: int, shape: tuple[int, int], setting: Setting
) -> int | None:
    """What a layer keeps from its forward to its backward pass, its parameters left out; None where
    that is unknown (torch.compile decides it).

    A layer of its own is asked, so that the first call of the measured one is a first call, and for
    a few tokens: what it keeps of each is the same.
    """
    layer = _make_layer(spec, shape, setting)
    if layer._compiled_call_impl is not None:
        return None
    try:
        few, more = (_count_saved_bytes(layer, n, shape[0], setting) for n in (FEW, 2 * FEW))
    except Exception:  # noqa: BLE001  a layer may take other batches only, and is not asked that
        return None
    return few + (more - few) // FEW * (tokens - FEW)


def _count_saved_bytes(layer: nn.Module, tokens: int, inputs: int, setting: Setting) -> int:
    parameters = {parameter.data_ptr() for parameter in layer.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    x = torch.randn(
        tokens, inputs, device=setting.device, dtype=setting.torch_dtype, requires_grad=True
    )
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), setting.cast():
        layer(x)
    return sum(sizes.values())


def make_reference(spec: str, tokens: int, shape: tuple[int, int], setting: Setting) -> Workload:
    """The plain formula on the equivalent dense weight, in float32, from the same values."""
    x, grad = share_inputs(tokens, *shape, setting, torch.initial_seed())
    layer = _make_layer(spec, shape, setting).float()
    x = x.detach().float().requires_grad_()
    return _make_phases(partial(Plain(layer), x), layer, x, grad.float(), setting)


def dense_weight(layer: nn.Module) -> Tensor:
    """The weight of the nn.Linear that computes the same: `to_dense` of layers that have it."""
    weight: Tensor = layer.to_dense() if hasattr(layer, "to_dense") else layer.weight  # type: ignore[operator,assignment]
    return weight


class Plain(nn.Module):
    """A layer's own parameters in the plain formula of nn.Linear: what it must agree with."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._dense_weight = partial(dense_weight, layer)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._dense_weight(), self.bias)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def share_inputs(
    tokens: int, inputs: int, outputs: int, setting: Setting, seed: int
) -> tuple[Tensor, Tensor]:
    """A layer's input and the gradient of its output, the same ones for the same seed."""
    torch.manual_seed(seed)
    x = torch.randn(
        tokens, inputs, device=setting.device, dtype=setting.torch_dtype, requires_grad=True
    )
    return x, torch.randn(tokens, outputs, device=setting.device).to(setting.output_dtype)


def _make_layer(spec: str, shape: tuple[int, int], setting: Setting) -> nn.Module:
    # The same weights every time, whether or not the inputs had to be made first.
    torch.manual_seed(torch.initial_seed())
    return registry.make(spec, *shape, device=setting.device, dtype=setting.torch_dtype)


def list_notes(spec: str, device: str) -> list[str]:
    """What a reader of a layer's times should know about how it computes here."""
    name = registry.parse(spec).kind
    kind = registry.KINDS[name]
    notes = list_int8_notes(device) if kind.int8 else []
    if kind.float8 and registry.emulates_float8(device):
        notes.append(
            "float8 is emulated here: numbers are rounded to float8 and multiplied in "
            f"{registry.FLOAT8_STAND_IN}, so that times say nothing about float8"
        )
    if name == "dyad" and (note := dyad_matmul.describe(device)) is not None:
        notes.append(note)
    return notes


def list_int8_notes(device: str) -> list[str]:
    """The same of int8 arithmetic."""
    note = int8_ops.describe(device)
    return [] if note is None else [note]


def _make_phases(
    forward: Callable[[], Tensor], layer: nn.Module, x: Tensor, grad: Tensor, setting: Setting
) -> Workload:
    gradients: dict[str, Any] = {"x": x, **dict(layer.named_parameters())}

    def clear_gradients() -> None:
        for tensor in gradients.values():
            tensor.grad = None

    def backward(y: Tensor) -> None:
        y.backward(grad)

    return Workload(
        phases={"forward": forward, "backward": backward},
        gradients=gradients,
        reset=clear_gradients,
        conditions=setting.conditions,
        facts={"parameters": sum(p.numel() for p in layer.parameters())},
    )
