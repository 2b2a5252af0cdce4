"""Weights of a model that is built without memory, given to it part by part.

Every parameter is drawn by itself, from a seed of its own that follows from torch's and its name:
so a model has the same weights whether it is filled at once or block by block, and whatever becomes
of a block (moved to a device, sharded over ranks) before the next one is filled. A rank that shards
never holds more than its own shards and one block, nor on its host than one parameter.

Models of the library transformers draw the weights of a module at once, by rules of their own. So
each module has a seed there, and the host holds one block at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flopwatch.devices.kinds import HOST

Draw = Callable[[str, Tensor], object]
"""Fills a parameter, by name, with its first values."""


def mix_seed(*parts: object) -> int:
    """One seed of several numbers or names: neighbouring ones have nothing in common.

    >>> mix_seed(0, "head") == mix_seed(0, "head") != mix_seed(1, "head")
    True
    """
    text = " ".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def draw_each(parameters: Iterable[tuple[str, Tensor]], draw: Draw) -> None:
    """Each from its own seed; torch's is the same afterwards."""
    seed = torch.initial_seed()
    with torch.no_grad():
        for name, parameter in parameters:
            torch.manual_seed(mix_seed(seed, name))
            draw(name, parameter)
    torch.manual_seed(seed)


def fill_parameters(module: nn.Module, names: Mapping[int, str], draw: Draw, device: str) -> None:
    """Give weights to whatever of a module has no memory, what is shared staying so. They are drawn
    on the host, to be the same on every device, one after another. `names` are by the `id` of the
    parameters that they take the places of."""
    made: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        for key, empty in owner.named_parameters(recurse=False, remove_duplicate=False):
            if not empty.is_meta:
                continue
            if id(empty) not in made:
                drawn = torch.empty_like(empty, device=HOST, requires_grad=False)
                draw_each([(names[id(empty)], drawn)], draw)
                made[id(empty)] = nn.Parameter(drawn.to(device))
            setattr(owner, key, made[id(empty)])


@contextmanager
def empty_matrices() -> Iterator[None]:
    """What is made meanwhile has no memory for its matrices. Vectors and buffers are small, and
    have the values that they are made with."""
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.dim() > 1 and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def fill_modules(
    part: nn.Module,
    names: Mapping[nn.Module, str],
    draw: Callable[[nn.Module], object],
    dtype: torch.dtype,
    filled: Collection[nn.Module],
) -> None:
    """Give weights to a part of a model whose matrices have no memory, on the host, but for what is
    filled already. `draw` gives a module its first values, and may reach into those below it, whose
    turn comes first."""
    made: dict[int, nn.Parameter] = {}
    inside = list(_list_upwards(part, filled))
    for module in inside:
        for key, empty in module.named_parameters(recurse=False, remove_duplicate=False):
            if empty.is_meta and id(empty) not in made:
                unset = torch.full_like(empty, math.nan, device=HOST, requires_grad=False)
                made[id(empty)] = nn.Parameter(unset, empty.requires_grad)
            if empty.is_meta:
                setattr(module, key, made[id(empty)])
    seed = torch.initial_seed()
    with torch.no_grad():
        for module in inside:
            torch.manual_seed(mix_seed(seed, names[module]))
            draw(module)
            own = module.parameters(recurse=False)
            if any(parameter.isnan().any() for parameter in own):  # the library has no rule for it
                module.reset_parameters()  # type: ignore[operator]
    torch.manual_seed(seed)
    for module in inside:
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(dtype)


def _list_upwards(module: nn.Module, left: Collection[nn.Module]) -> Iterator[nn.Module]:
    """A module after all that is inside of it."""
    if module not in left:
        for child in module.children():
            yield from _list_upwards(child, left)
        yield module
