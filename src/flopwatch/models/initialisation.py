"""Weights of a model that is built without memory, given to it part by part.

Every parameter is drawn by itself, from a seed of its own that follows from torch's and its name:
so a model has the same weights whether it is filled at once or block by block, and whatever becomes
of a block (moved to a device, sharded over ranks) before the next one is filled. A rank that shards
never holds more than its own shards and one block, nor on its host than one parameter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

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
