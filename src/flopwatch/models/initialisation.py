"""Weights of a model that is built without memory, given to it part by part.

Every parameter is drawn by itself, from a seed of its own that follows from torch's and its name:
so a model has the same weights whether it is filled at once or block by block, and whatever becomes
of a block (moved to a device, sharded over ranks) before the next one is filled. A rank that shards
never holds more on its host than its own shards and one block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from flopwatch.devices.kinds import HOST

Draw = Callable[[str, Tensor], None]
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


def allocate(module: nn.Module) -> dict[int, nn.Parameter]:
    """Give memory of the host to whatever of a module has none, what is shared staying so; the new
    parameters by the `id` of the old ones."""
    made: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        for key, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.is_meta:
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device=HOST))
                setattr(owner, key, made[id(parameter)])
        for key, buffer in owner.named_buffers(recurse=False, remove_duplicate=False):
            if buffer.is_meta:
                setattr(owner, key, torch.empty_like(buffer, device=HOST))
    return made
