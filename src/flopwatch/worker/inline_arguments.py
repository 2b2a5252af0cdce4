"""The arguments of `flopwatch.measure` and `flopwatch.compare`, checked: one sentence for each
mistake, before anything runs."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from operator import index
from typing import Any, get_args

from flopwatch.devices.base import find_device_in_use
from flopwatch.devices.kinds import HOST
from flopwatch.devices.present_accelerators import describe_present, list_in_process
from flopwatch.errors import UsageError
from flopwatch.lazy import require
from flopwatch.settings import LARGEST_SEED, Cache, Device
from flopwatch.suites.workload import Workload

Function = Callable[[], Any]
Timed = Function | Mapping[str, Callable[..., Any]] | Workload
"""A function, or several phases by name, each called with what the one before it returned."""


def check_functions(functions: Any) -> dict[str, Timed]:
    if not isinstance(functions, Mapping):
        raise UsageError(
            f"compare takes a mapping from names to functions, not a {type(functions).__name__}: "
            'compare({"a": f, "b": g})'
        )
    for name in functions:
        if not isinstance(name, str) or not name:
            raise UsageError(f"the name {name!r} of a function is not text; name it with a string")
    if len(functions) < 2:
        raise UsageError("compare needs at least two functions; measure times a single one")
    for name, function in functions.items():
        check_function(repr(name), function)
    return dict(functions)


def check_function(name: str, function: Any) -> None:
    kind = type(function).__name__
    if isinstance(function, Workload):
        return
    if isinstance(function, Mapping):
        if not function or not all(map(callable, function.values())):
            raise UsageError(
                f"{name} is a mapping; its entries must be phases, which are functions"
            )
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(function, torch.nn.Module):
        raise UsageError(f"{name} is a module ({kind}); pass a call of it: lambda: module(x)")
    if not callable(function):
        raise UsageError(f"{name} is a {kind}, not a function; pass a call: lambda: f(x)")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(
            f"{name} is a generator or a coroutine, and calling it does not run it; pass a "
            "function that does"
        )
    needed = list_needed_arguments(function)
    if needed:
        raise UsageError(
            f"{name} needs arguments ({', '.join(needed)}) and is called without any; pass a call: "
            f"lambda: f({', '.join(needed)})"
        )


def name_function(function: Timed) -> str:
    """
    >>> name_function(len), name_function(lambda: 1)
    ('len', 'function')
    """
    name = getattr(function, "__name__", "<lambda>")
    return "function" if name == "<lambda>" else str(name)


def list_needed_arguments(function: Callable[..., Any]) -> list[str]:
    """
    >>> list_needed_arguments(lambda x, y=1, *rest, z: x)
    ['x', 'z']
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some that are written in C have none
        return []
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in starred]


def check_number(
    name: str, value: Any, *, low: float = 0.0, high: float = math.inf, example: str
) -> float:
    """One between these two, which it must not reach."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not low < value < high:  # nan is not between anything
        wanted = f"more than {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise UsageError(f"{name} {value!r} is not a number {wanted}; {example}")
    return float(value)


def check_seed(seed: Any) -> int:
    is_whole = hasattr(seed, "__index__") and not isinstance(seed, bool)
    if not is_whole or not 0 <= index(seed) <= LARGEST_SEED:
        raise UsageError(f"seed {seed!r} is not a whole number between 0 and {LARGEST_SEED}")
    return index(seed)


def check_cache(cache: Any) -> Cache:
    known: tuple[Cache, ...] = get_args(Cache)
    if cache not in known:
        raise UsageError(f"cache {cache!r} is unknown; choose one of {', '.join(known)}")
    if cache == "cold":
        require("torch")
    return known[known.index(cache)]


def check_device(device: Any) -> Device:
    if device is None:
        return find_device_in_use()
    if device == HOST:
        return HOST
    require("torch")
    import torch

    found = list_in_process(torch)
    if found.device is None or device != found.device:
        raise UsageError(f"device {device!r}, but {describe_present(found)}")
    return found.device


def choose_gradients(gradients_of: Any, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """By function: the tensors whose gradients are compared, by name; None where they are to be
    found."""
    if gradients_of is None:
        return dict.fromkeys(names)
    if isinstance(gradients_of, Mapping) and any(name in gradients_of for name in names):
        missing = [name for name in names if name not in gradients_of]
        if missing or len(gradients_of) > len(names):
            raise UsageError(
                f"gradients_of has {', '.join(map(repr, gradients_of))}, but the functions are "
                f"{', '.join(map(repr, names))}; give the tensors of each"
            )
        return {name: _name_tensors(gradients_of[name]) for name in names}
    return dict.fromkeys(names, _name_tensors(gradients_of))


def _name_tensors(given: Any) -> dict[str, Any]:
    import torch

    if isinstance(given, torch.nn.Module):
        parameters = given.named_parameters()
        return {name: tensor for name, tensor in parameters if tensor.requires_grad}
    if isinstance(given, torch.Tensor):
        given = [given]
    named = given
    if isinstance(given, Sequence):
        named = {f"tensor {place}": tensor for place, tensor in enumerate(given)}
    if not isinstance(named, Mapping) or not named:
        raise UsageError(
            f"gradients_of is {given!r}; give a module, tensors in a list or by name, or a mapping "
            "from functions to one of those"
        )
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_leaf or not tensor.requires_grad:
            raise UsageError(
                f"{name} in gradients_of gets no gradient; give tensors with requires_grad=True "
                "that are not computed from others"
            )
    return dict(named)
