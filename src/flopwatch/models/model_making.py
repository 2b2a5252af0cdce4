"""The model of a job, or a stage of it, as the variant computes it: made empty, and given its
weights part by part."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import nn

from flopwatch.devices.kinds import HOST
from flopwatch.errors import LayerError, Unsupported
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.layers.layer_workload import Plain
from flopwatch.layers.swapping import find_linear, install, make_alike
from flopwatch.models.builder import (
    build,
    build_empty,
    choose_attention,
    choose_mixing,
    choose_recompute,
    find_blocks,
    list_initialisers,
)
from flopwatch.models.initialisation import fill_modules, fill_parameters, mix_seed
from flopwatch.models.step_workload import find_pattern
from flopwatch.models.transformer import Rotation
from flopwatch.settings import Device


def make_model(
    job: TrainingJob,
    *,
    plain: bool = False,
    is_empty: bool = False,
    layers: range | None = None,
) -> nn.Module:
    """In the host's memory, with weights from torch's current seed, the same ones for every way to
    share it. With `plain`, swapped layers and experts are computed by the plain formula; with
    `is_empty`, its matrices take no memory, and it gets all that by a `Filler`. With `layers`, a
    stage of it."""
    is_whole = job.shape.is_ours and not is_empty
    dtype = job.arithmetic.dtype
    model = build(job.shape, dtype=dtype) if is_whole else build_empty(job.shape, dtype, layers)
    choose_attention(model, job.attention)
    choose_recompute(model, job.recompute)
    choose_mixing(model, "plain" if plain else "grouped")
    if is_whole:
        swap_layers(model, job, find_swapped(model, job))
    elif not is_empty:
        fill = Filler(model, job, HOST)
        for part in (*find_blocks(model), model):
            fill(part)
    if plain and not job.is_dense:
        chosen = find_linear(model, find_pattern(job))
        install(model, {name: Plain(layer) for name, layer in chosen.items()})
    return model


def find_swapped(model: nn.Module, job: TrainingJob) -> list[str]:
    """Names of the layers that the variant replaces."""
    try:
        return [] if job.is_dense else [*find_linear(model, find_pattern(job))]
    except LayerError as error:
        raise Unsupported(str(error)) from None


def swap_layers(model: nn.Module, job: TrainingJob, names: Sequence[str]) -> None:
    """Each from a seed of its own, like every parameter of a model."""
    seed = torch.initial_seed()
    for name in names:
        torch.manual_seed(mix_seed(seed, name))
        try:
            made = make_alike(job.linear, name, model.get_submodule(name))
        except LayerError as error:  # blocks that do not divide, say
            raise Unsupported(str(error)) from None
        install(model, {name: made})
    torch.manual_seed(seed)


class Filler:
    """Gives an empty model its weights, part by part, in the memory of a device: those that
    `make_model` would have given it."""

    def __init__(self, model: nn.Module, job: TrainingJob, device: Device) -> None:
        self._model: Any = model
        self._job = job
        self._device = device
        self._dtype: torch.dtype = getattr(torch, job.arithmetic.dtype)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        if job.shape.is_ours and job.shape.is_tied:  # a stage has the head without the embedding
            drawn_as = {"head.weight": "embedding.weight"}
            self._names = {key: drawn_as.get(name, name) for key, name in self._names.items()}
        self._parts = {module: name for name, module in model.named_modules()}
        self._draws = {} if job.shape.is_ours else list_initialisers(model)
        self._filled: set[nn.Module] = set()
        self._swapped = find_swapped(model, job)
        """Those that are still to be replaced."""

    def __call__(self, part: nn.Module) -> None:
        """What of it is still empty."""
        if self._job.shape.is_ours:
            self._fill_ours(part)
        else:
            draws = self._draws
            fill_modules(part, self._parts, lambda m: draws[m](m), self._dtype, self._filled)
            self._filled.add(part)
        prefix = self._parts[part]
        inside = [name for name in self._swapped if not prefix or name.startswith(f"{prefix}.")]
        for name in inside:  # drawn on the host, too
            self._model.get_submodule(name).to(HOST)
            swap_layers(self._model, self._job, [name])
            self._model.get_submodule(name).to(self._device)
        self._swapped = [name for name in self._swapped if name not in inside]

    def _fill_ours(self, part: nn.Module) -> None:
        fill_parameters(part, self._names, self._model.draw, self._device)
        for module in part.modules():
            if isinstance(module, Rotation):
                module.to_empty(device=HOST).initialize()
                module.to(self._device)


def compile_blocks(model: nn.Module) -> None:
    """Each block by itself: what gathers its parameters or averages its gradients lies between
    blocks, and would tear a graph of the whole model apart. Blocks of one kind are compiled once
    for all of them, but not for another variant's: each pays for its own, as if it were alone."""
    is_known = "isolate_recompiles" in signature(torch.compile).parameters
    options: dict[str, Any] = {"isolate_recompiles": True} if is_known else {}
    kinds = {type(block) for block in find_blocks(model)}
    compiled = {kind: torch.compile(kind.forward, dynamic=False, **options) for kind in kinds}
    for block in find_blocks(model):
        block.forward = MethodType(compiled[type(block)], block)
