"""Gradients of a model that ranks divide, as one process would have them: what jobs are compared
by."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from flopwatch.models.step_workload import FICKLE
from flopwatch.models.tensor_parallel import divide_alike, restore_rows
from flopwatch.settings import Device


def gather_named(own: Mapping[str, Tensor], group: Any, device: Device) -> dict[str, Tensor]:
    """The tensors of all ranks of a group, each of which has others."""
    shapes = json.dumps({name: list(tensor.shape) for name, tensor in own.items()}).encode()
    texts = _gather_uneven(torch.frombuffer(bytearray(shapes), dtype=torch.uint8).to(device), group)
    values = _gather_uneven(torch.cat([tensor.flatten().float() for tensor in own.values()]), group)
    found = {}
    for text, flat in zip(texts, values, strict=True):
        named = json.loads(bytes(text.tolist()))
        parts = flat.split([math.prod(shape) for shape in named.values()])
        for (name, shape), part in zip(named.items(), parts, strict=True):
            found[name] = part.view(shape)
    return found


def _gather_uneven(flat: Tensor, group: Any) -> list[Tensor]:
    """Of every rank."""
    device = flat.device
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(group.size())]
    distributed.all_gather(sizes, torch.tensor([flat.numel()], device=device), group=group)
    longest = int(max(sizes))
    boxes = [torch.zeros(longest, dtype=flat.dtype, device=device) for _ in sizes]
    padded = functional.pad(flat, (0, longest - flat.numel()))
    distributed.all_gather(boxes, padded, group=group)
    return [box[: int(size)] for box, size in zip(boxes, sizes, strict=True)]


def list_gradients(model: nn.Module) -> dict[str, Tensor]:
    """All of the small ones, and the norms of the large ones: between them, every part of the
    backward pass. Left out are those that rounding decides."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        if gradient is None or name.endswith(FICKLE):
            continue
        gradient = divide_alike(parameter, gradient)
        if parameter.dim() == 1:
            owner = model.get_submodule(name.rpartition(".")[0])
            found[f"grad {name}"] = restore_rows(owner, _make_whole(gradient))
        else:
            found[f"norm of grad {name}"] = _make_whole(torch.linalg.vector_norm(gradient))
    return found


def _make_whole(tensor: Any) -> Tensor:
    """What ranks have parts of."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
