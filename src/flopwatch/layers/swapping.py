"""Layers in the place of `nn.Linear`: what they have in common, and `swap`, which puts them into
models by pattern.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from flopwatch.errors import LayerError
from flopwatch.layers import registry


class DropIn(nn.Module):
    """What every such layer does alike: check its input, follow autocast, and take any number of
    leading dimensions. It has a `weight`, of any shape, and a `bias`; a subclass says how they are
    applied."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        weight_shape: tuple[int, ...],
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(weight_shape, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform, bounded as in a dense layer of the same input."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        x, weight, bias = cast_for_autocast(x, self.weight, self.bias)
        if x.dtype != weight.dtype:
            raise LayerError(
                f"the input is {x.dtype} but the layer {weight.dtype}; convert one of them with "
                ".to(), or use torch.autocast"
            )
        tokens = math.prod(x.shape[:-1])  # -1 would not do where there are no features
        y = self.multiply(x.reshape(tokens, self.in_features), weight, bias)
        return y.reshape(*x.shape[:-1], self.out_features)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output for (tokens, in_features), all in one dtype."""
        raise NotImplementedError

    def _check(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise LayerError(
                f"a linear layer takes floating-point input, not {x.dtype}; convert it with "
                ".to(), for example .to(torch.float32)"
            )
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise LayerError(
                f"the last dimension of the input must be {self.in_features}, the layer's "
                f"in_features; the input is {tuple(x.shape)}"
            )


def cast_for_autocast(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """In autocast's dtype where it is on; like autocast, leave float64 alone."""
    device = x.device.type
    available = torch.amp.is_autocast_available(device)  # not on meta
    if not available or not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def without_autocast(device: str) -> AbstractContextManager[object]:
    """For numbers that it would shorten before they are added up."""
    available = torch.amp.is_autocast_available(device)  # not on meta
    return torch.autocast(device, enabled=False) if available else nullcontext()


@dataclass(frozen=True, kw_only=True)
class Swap:
    """What was replaced."""

    spec: str
    layers: tuple[str, ...]
    """Full names of the replaced layers."""
    parameters_before: int
    parameters_after: int
    """Of the whole model, shared ones counted once."""

    def __str__(self) -> str:
        return (
            f"{len(self.layers)} layers are now {self.spec} ({_shorten(self.layers, 4)}); the "
            f"model has {self.parameters_after:,} parameters instead of {self.parameters_before:,}"
        )


def swap(
    model: nn.Module, spec: str, match: str | list[str] = "*", *, keep_weights: bool = False
) -> Swap:
    """Replace the model's linear layers whose names match by what `spec` asks for.

    Names are matched like file names (``*.fc[12]``), or against each of a list of patterns. The new
    layers have the old ones' sizes, bias, device, dtype and mode, and fresh random weights, for
    training from scratch; with `keep_weights`, the old ones' parameters themselves, which a layer
    that has the parameters of nn.Linear (SwitchBack) can take over. Either all are replaced or,
    where one cannot be, none.
    """
    chosen = find_linear(model, match)
    before = count_parameters(model)
    made = {name: make_alike(spec, name, layer) for name, layer in chosen.items()}
    if keep_weights:
        for name, layer in made.items():
            hand_over(name, chosen[name], layer)
    install(model, made)
    return Swap(
        spec=spec,
        layers=tuple(made),
        parameters_before=before,
        parameters_after=count_parameters(model),
    )


def find_linear(model: nn.Module, match: str | list[str] = "*") -> dict[str, nn.Module]:
    """The model's linear layers whose names match; at least one, and none with shared weights."""
    candidates = {name: module for name, module in _name_modules(model) if is_linear(module)}
    patterns = [match] if isinstance(match, str) else match
    chosen = {
        name: layer
        for name, layer in candidates.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not chosen:
        raise LayerError(
            f"no linear layer of the model matches {' or '.join(patterns)!r}; "
            + (f"it has {_shorten(_generalize(candidates))}" if candidates else "it has none")
        )
    if "" in chosen:
        raise LayerError("the model is itself a linear layer; make another one with layers.make")
    owners = _find_owners(model)
    for name, layer in chosen.items():
        for parameter in layer.parameters(recurse=False):
            others = [owner for owner in owners[id(parameter)] if owner != name]
            if others:
                raise LayerError(
                    f"{name!r} shares its weight with {others[0]!r}, and replacing one would part "
                    "them; choose a pattern that leaves it out"
                )
    return chosen


def is_linear(module: nn.Module) -> bool:
    """A plain nn.Linear, or a layer of ours. Subclasses of nn.Linear are left alone: their owners
    tend to use the weight directly, as nn.MultiheadAttention does."""
    return type(module) is nn.Linear or (
        type(module).__module__.startswith("flopwatch.layers.") and hasattr(module, "in_features")
    )


def make_alike(spec: str, name: str, layer: nn.Module) -> nn.Module:
    """A new layer in the place of an old one."""
    weight: nn.Parameter | None = layer.weight  # type: ignore[assignment]
    if weight is None:
        raise LayerError(
            f"{name!r} was prepared for inference and has no weight to go by; swap before preparing"
        )
    try:
        made = registry.make(
            spec,
            layer.in_features,  # type: ignore[arg-type]
            layer.out_features,  # type: ignore[arg-type]
            bias=layer.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
    except LayerError as error:
        raise LayerError(f"{name!r} cannot become {spec}: {error}") from None
    for parameter in made.parameters():
        if (parameter.device, parameter.dtype) != (weight.device, weight.dtype):
            raise LayerError(
                f"the maker of {spec} gave {name!r} a parameter in {parameter.dtype} on "
                f"{parameter.device}, not in {weight.dtype} on {weight.device}; let it pass on the "
                "device and dtype that it is given"
            )
    return made.train(layer.training)


def hand_over(name: str, old: nn.Module, new: nn.Module) -> None:
    """Give a layer the parameters of the one whose place it takes."""
    parameters = dict(old.named_parameters())
    shapes = {key: parameter.shape for key, parameter in parameters.items()}
    if shapes != {key: parameter.shape for key, parameter in new.named_parameters()}:
        raise LayerError(
            f"{name!r} cannot keep its weights as {type(new).__name__}, whose parameters are "
            "others; leave out keep_weights, and train from scratch"
        )
    for key, parameter in parameters.items():
        setattr(new, key, parameter)


def install(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Put layers at the places that their names say."""
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _name_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All of them; one that stands at two places, under both names."""
    return model.named_modules(remove_duplicate=False)


def _find_owners(model: nn.Module) -> dict[int, list[str]]:
    owners: dict[int, list[str]] = defaultdict(list)
    for name, module in _name_modules(model):
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)].append(name)
    return owners


def _generalize(names: Mapping[str, nn.Module]) -> list[str]:
    """Names with numbers as ``*``, each once: a model of 24 layers has the same ones 24 times."""
    general = (
        ".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names
    )
    return list(dict.fromkeys(general))


def _shorten(names: tuple[str, ...] | list[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, and {len(names) - most} more"
