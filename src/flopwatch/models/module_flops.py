"""FLOPs of any module's forward and backward pass, counted on tensors without memory.

A copy of the module whose parameters are fake tensors runs once on fake inputs: it computes nothing
and holds nothing, and the module itself is not touched. Since autograd decides what the backward
pass computes, frozen parameters, adapters (LoRA) and activation checkpointing come out right.

Operators are counted by torch's own formulas. What these do not know, and what may be a matmul
(operators of other packages, recurrent layers, a weight that no gradient reached since the loss
function uses it) is listed: a count with something missing is none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

ALIASES = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "_scaled_dot_product_flash_attention_backward"
    ),
    "_scaled_dot_product_fused_attention_overrideable": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_fused_attention_overrideable_backward": (
        "_scaled_dot_product_flash_attention_backward"
    ),
    "_int_mm": "mm",
}
"""Operators that torch's counter does not know, by those whose first arguments are the same."""
COUNTED_NAMESPACES = ("aten", "prim", "prims", "_c10d_functional", "c10d", "c10d_functional")
"""Operators of others may be anything."""
UNCOUNTED = (
    *("_grouped_mm", "_scaled_grouped_mm", "_weight_int8pack_mm", "_weight_int4pack_mm"),
    *("_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_triton_multi_head"),
    *("lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_sparse_mm", "_cslt_sparse_mm"),
)
"""Of torch's own those that multiply matrices, and have no formula."""
NEEDED_OF_FUSED = 4 / 5
"""Of the matmuls of a fused attention's backward pass: the fifth is that of the scores, which it
computes a second time. No convention counts that."""
HOOKS = (
    *("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs"),
    *("_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """A tensor without its values, as `describe_call` leaves it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """How a module was called."""

    arguments: Any
    options: Any
    autocast: tuple[str, torch.dtype] | None
    """Kind of device and dtype, where autocast was on."""


@dataclass(kw_only=True, slots=True)
class ModuleFlops:
    forward: float = 0.0
    backward: float = 0.0
    recomputed: float = 0.0
    """In the backward pass, by activation checkpointing."""
    uncounted: dict[str, None] = field(default_factory=dict)
    """What may have FLOPs that are in none of these."""


def describe_call(arguments: Any, options: Any, device: str) -> Call:
    """Keeps no tensor alive."""
    is_cast = torch.is_autocast_enabled(device)
    return Call(
        arguments=tree_map(_describe, arguments),
        options=tree_map(_describe, options),
        autocast=(device, torch.get_autocast_dtype(device)) if is_cast else None,
    )


def _describe(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return TensorSpec(
        shape=tuple(value.shape),
        dtype=value.dtype,
        device=value.device,
        requires_grad=value.requires_grad,
    )


def find_tokens(call: Call) -> tuple[int, int] | None:
    """Sequences and their length, by the first input of whole numbers in two dimensions; None where
    it has none: then it is no language model, or is called in an unusual way."""
    for spec in tree_leaves([call.arguments, call.options]):
        if (
            isinstance(spec, TensorSpec)
            and len(spec.shape) == 2
            and not spec.dtype.is_floating_point
        ):
            return spec.shape[0], spec.shape[1]
    return None


def count_module_flops(module: nn.Module, call: Call) -> ModuleFlops:
    """Of one forward and backward pass. Raises whatever the module does on fake tensors: one that
    looks at values cannot run on them."""
    counted = ModuleFlops()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        copied = copy_without_memory(unwrap(module), mode, {})
        arguments, options = (tree_map(_make, each) for each in (call.arguments, call.options))
        with FlopCount(counted) as counter, torch.enable_grad():
            if call.autocast is None:
                output = copied(*arguments, **options)
            else:
                kind, dtype = call.autocast
                with torch.autocast(kind, dtype=dtype):
                    output = copied(*arguments, **options)
            counter.is_backward = True
            _run_backward(copied, output, counted)
    return counted


def _run_backward(copied: nn.Module, output: Any, counted: ModuleFlops) -> None:
    """Asks for gradients, which changes no parameter's."""
    ends = [each for each in list_tensors(output) if each.requires_grad]
    named = {n: p for n, p in copied.named_parameters() if p.requires_grad}
    if not ends or not named:
        return
    found = torch.autograd.grad(
        ends, list(named.values()), [torch.ones_like(end) for end in ends], allow_unused=True
    )
    for (name, parameter), gradient in zip(named.items(), found, strict=True):
        if gradient is None and parameter.ndim > 1:
            counted.uncounted[f"what uses {name}"] = None


def list_tensors(output: Any) -> Iterator[Tensor]:
    """Of what models return: a tensor, or some in a tuple, a dict or an object."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from list_tensors(value)
    elif isinstance(output, Sequence) and not isinstance(output, str):
        for value in output:
            yield from list_tensors(value)
    elif hasattr(output, "__dict__"):
        for value in vars(output).values():
            if isinstance(value, Tensor):
                yield value


def _make(value: Any) -> Any:
    if not isinstance(value, TensorSpec):
        return value
    made = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def unwrap(module: nn.Module) -> nn.Module:
    """What torch.compile or DistributedDataParallel has wrapped."""
    while True:
        inner = module.__dict__.get("_modules", {}).get("_orig_mod")
        if inner is None and type(module).__name__ == "DistributedDataParallel":
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def copy_without_memory(
    module: nn.Module, mode: FakeTensorMode, known: dict[int, Any]
) -> nn.Module:
    """With fake parameters and buffers of the same shapes, whole where ranks share them, and
    without hooks. Other attributes are shared with the original, but for lists and the like, which
    a forward pass may add to."""
    module = unwrap(module)
    if id(module) in known:
        copied: nn.Module = known[id(module)]
        return copied
    copied = object.__new__(_find_class(module))
    known[id(module)] = copied
    content = {
        name: copy(value) if isinstance(value, dict | list | set) else value
        for name, value in module.__dict__.items()
    }
    content.pop("forward", None)  # which would be bound to the original
    content["_compiled_call_impl"] = None
    content.update({name: OrderedDict() for name in HOOKS if name in content})
    content["_parameters"] = {
        name: _fake(parameter, known) for name, parameter in module._parameters.items()
    }
    content["_buffers"] = {name: _fake(buffer, known) for name, buffer in module._buffers.items()}
    content["_modules"] = {
        name: None if child is None else copy_without_memory(child, mode, known)
        for name, child in module._modules.items()
    }
    copied.__dict__.update(content)
    return copied


def _find_class(module: nn.Module) -> type[nn.Module]:
    """Its own, where `fully_shard` has given it another."""
    kind = type(module)
    names = [base.__name__ for base in kind.__mro__]
    if "FSDPModule" not in names:
        return kind
    own = kind.__mro__[names.index("FSDPModule") + 1 :]
    return next(base for base in own if issubclass(base, nn.Module))


def _fake(tensor: Any, known: dict[int, Any]) -> Any:
    if tensor is None:
        return None
    if id(tensor) not in known:
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        known[id(tensor)] = made
    return known[id(tensor)]


def _make_formulas() -> dict[Any, Callable[..., float]]:
    found: dict[Any, Callable[..., float]] = dict(flop_registry)
    for name, alike in ALIASES.items():
        formula = found.get(getattr(aten, alike, None))
        if hasattr(aten, name) and formula is not None:
            found.setdefault(getattr(aten, name), formula)
    return found


class FlopCount(TorchDispatchMode):
    """Counts operators by torch's formulas, and lists those that have none and may need one."""

    def __init__(self, counted: ModuleFlops) -> None:
        super().__init__()
        self.is_backward = False
        self._counted = counted
        self._formulas = _make_formulas()

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(options or {})
        packet = operation._overloadpacket
        if packet not in self._formulas and operation is not torch.ops.prim.device.default:
            with self:  # of some operators only the parts are known
                result = operation.decompose(*arguments, **options)
                if result is not NotImplemented:
                    return result
        result = operation(*arguments, **options)
        name = packet.__name__
        formula = self._formulas.get(packet)
        if formula is not None:
            self._add(name, float(formula(*arguments, **options, out_val=result)))
        elif operation.namespace not in COUNTED_NAMESPACES or name in UNCOUNTED:
            self._counted.uncounted[f"the operator {operation.namespace}::{name}"] = None
        return result

    def _add(self, name: str, flops: float) -> None:
        if not self.is_backward:
            self._counted.forward += flops
        elif torch.is_grad_enabled():  # as it is only where a forward pass is repeated
            self._counted.recomputed += flops
        else:
            is_fused = "attention" in name and name.endswith("backward")
            self._counted.backward += flops * (NEEDED_OF_FUSED if is_fused else 1.0)
