"""A model's training step as a workload: forward, backward and optimizer, with some of its linear
layers exchanged for what a spec asks for, and those layers timed inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import nn

from flopwatch.layers import registry
from flopwatch.layers.replacement import find_linear, make_alike
from flopwatch.layers.workload import Plain, Setting
from flopwatch.models.counts import BACKWARD, FORWARD, count_flops, count_parameters
from flopwatch.models.hugging_face import build
from flopwatch.models.shapes import ARCHITECTURES, Shape
from flopwatch.models.step import SharedModel, TrainingStep
from flopwatch.suite import Workload

ADAMW_FLOPS = 12
"""For one parameter: two moments, their corrections, a root, a division, decay and update."""


def make_workload(shape: Shape, spec: str, batch: tuple[int, int], setting: Setting) -> Workload:
    """`batch` is sequences x tokens. Calls with the same arguments, but for `spec` and autocast,
    share one model."""
    shared = _share_model(shape, batch, setting.device, setting.dtype)
    return _make_phases(shape, shared, _make_layers(shared, spec), setting)


def make_reference(shape: Shape, spec: str, batch: tuple[int, int], setting: Setting) -> Workload:
    """The same, the exchanged layers in the plain formula of nn.Linear."""
    shared = _share_model(shape, batch, setting.device, setting.dtype)
    layers = {name: Plain(layer) for name, layer in _make_layers(shared, spec).items()}
    return _make_phases(shape, shared, layers, setting)


def _make_phases(
    shape: Shape, shared: SharedModel, layers: Mapping[str, nn.Module], setting: Setting
) -> Workload:
    step = TrainingStep(shared, layers, setting.cast)
    gradients = step.find_comparable()
    return Workload(
        phases={"forward": step.forward, "backward": step.backward, "optimizer": step.update},
        gradients=gradients,
        reset=step.prepare,
        instrument=step.instrument,
        conditions=setting.conditions,
        facts={
            "parameters": sum(p.numel() for p in shared.model.parameters()),
            "hidden_size": shape.hidden_size,
            "layers": shape.layers,
        },
    )


@lru_cache(maxsize=1)
def _share_model(shape: Shape, batch: tuple[int, int], device: str, dtype: str) -> SharedModel:
    model = build(shape, device=device, dtype=dtype)
    return SharedModel(
        model,
        ids=torch.randint(shape.vocabulary, batch, device=device),
        exchanged=find_linear(model, ARCHITECTURES[shape.architecture].feed_forward),
    )


def _make_layers(shared: SharedModel, spec: str) -> Mapping[str, nn.Module]:
    if spec == "dense":
        return shared.exchanged
    # The same weights every time, whether or not the model had to be built first.
    torch.manual_seed(torch.initial_seed())
    return {name: make_alike(spec, name, old) for name, old in shared.exchanged.items()}


def count_step_flops(shape: Shape, spec: str, batch: tuple[int, int]) -> dict[str, float]:
    """By phase, and of the exchanged layers inside them; nothing where the spec does not say."""
    sequences, tokens = batch
    dense = count_flops(shape, batch=sequences, tokens=tokens)
    density = registry.find_density(registry.parse(spec))
    if density is None:
        return {}
    inside = dense.feed_forward * density
    forward = dense.forward - dense.feed_forward + inside
    weights = dense.feed_forward / (2 * sequences * tokens)
    parameters = count_parameters(shape) - weights * (1 - density)
    return {
        "forward": forward,
        "backward": 2 * forward,
        "optimizer": ADAMW_FLOPS * parameters,
        FORWARD: inside,
        BACKWARD: 2 * inside,
    }
