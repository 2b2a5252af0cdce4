"""A model's training step as a workload: forward, backward and optimizer, with some of its linear
layers exchanged for what a spec asks for, and those layers timed inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import nn

from flopwatch.layers.replacement import find_linear, make_alike
from flopwatch.layers.workload import Plain, Setting, list_notes
from flopwatch.models.counts import Swapped
from flopwatch.models.hugging_face import build
from flopwatch.models.shapes import ARCHITECTURES, Shape
from flopwatch.models.step import SharedModel, TrainingStep
from flopwatch.suite import Workload


def make_workload(
    shape: Shape,
    spec: str,
    batch: tuple[int, int],
    setting: Setting,
    swapped: Swapped = "feed-forward",
) -> Workload:
    """`batch` is sequences x tokens. Calls with the same arguments, but for `spec` and autocast,
    share one model."""
    shared = _share_model(shape, batch, setting.device, setting.dtype, swapped)
    step = TrainingStep(shared, _make_layers(shared, spec), setting.cast, swapped)
    return replace(_make_phases(shape, step, setting), notes=list_notes(spec, setting.device))


def make_reference(
    shape: Shape,
    spec: str,
    batch: tuple[int, int],
    setting: Setting,
    swapped: Swapped = "feed-forward",
) -> Workload:
    """The same, the exchanged layers in the plain formula of nn.Linear."""
    shared = _share_model(shape, batch, setting.device, setting.dtype, swapped)
    layers = {name: Plain(layer) for name, layer in _make_layers(shared, spec).items()}
    return _make_phases(shape, TrainingStep(shared, layers, setting.cast, swapped), setting)


def _make_phases(shape: Shape, step: TrainingStep, setting: Setting) -> Workload:
    gradients = step.find_comparable()  # and this puts the step's layers in
    return Workload(
        renewable=False,
        phases=step.phases,
        gradients=gradients,
        reset=step.prepare,
        instrument=step.instrument,
        conditions=setting.conditions,
        facts={
            "parameters": sum(p.numel() for p in step.shared.model.parameters()),
            "hidden_size": shape.hidden_size,
            "layers": shape.layers,
        },
    )


@lru_cache(maxsize=1)
def _share_model(
    shape: Shape, batch: tuple[int, int], device: str, dtype: str, swapped: Swapped
) -> SharedModel:
    model = build(shape, device=device, dtype=dtype)
    architecture = ARCHITECTURES[shape.architecture]
    patterns = {"feed-forward": architecture.feed_forward, "linear": architecture.blocks}
    return SharedModel(
        model,
        ids=torch.randint(shape.vocabulary, batch, device=device),
        exchanged=find_linear(model, patterns[swapped]),
    )


def _make_layers(shared: SharedModel, spec: str) -> Mapping[str, nn.Module]:
    if spec == "dense":
        return shared.exchanged
    # The same weights every time, whether or not the model had to be built first.
    torch.manual_seed(torch.initial_seed())
    return {name: make_alike(spec, name, old) for name, old in shared.exchanged.items()}
