"""A training step of a model in which layers can be swapped.

Variants of a model that differ in some layers share everything else: one model in memory, the same
tensors at the same places, so that what differs between their times is those layers. A variant
puts its own layers in before each step, which is not timed.

A model's training step as a workload: forward, backward and optimizer, with some of its linear
layers swapped for what a spec asks for, and those layers timed inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.layers.layer_workload import Plain, Setting, list_notes
from flopwatch.layers.swapping import find_linear, install, make_alike
from flopwatch.models.builder import build_from_transformers
from flopwatch.suites.suite import Stopwatch, Workload

Cast = Callable[[], AbstractContextManager[object]]
"""Makes the context that a forward pass runs in: autocast, or nothing."""
FICKLE = ("k_proj.bias", "fc1.bias")
"""Ends of names of parameters whose gradients rounding decides: of OPT's keys, where they are 0 but
for noise, and of what goes through its ReLUs."""


class SharedModel:
    """What all variants have in common."""

    def __init__(
        self,
        model: nn.Module,
        ids: Tensor,
        swapped: Mapping[str, nn.Module] | None = None,
        optimizer: str = "adamw",
    ) -> None:
        """`model` is called like one of transformers: with input_ids and labels, it gives an object
        with a loss. `swapped` are layers that every variant brings along itself, by name; they
        have optimizers of their own."""
        self.model = model
        self.ids = ids
        self.swapped = swapped or {}
        self.make_optimizer = OPTIMIZERS[optimizer]
        own = {id(p) for layer in self.swapped.values() for p in layer.parameters()}
        self.optimizer = self.make_optimizer([p for p in model.parameters() if id(p) not in own])
        self._originals = dict(self.swapped)
        self._installed = self.swapped

    def swap_in(self, layers: Mapping[str, nn.Module]) -> None:
        """Put these layers in, and the model's own ones back where others were. Those before them
        keep no gradients, which would fill the memory with those of all variants."""
        for layer in self._installed.values():
            layer.zero_grad(set_to_none=True)
        for name in layers:
            self._originals.setdefault(name, self.model.get_submodule(name))
        restored = {name: self._originals[name] for name in self._installed}
        install(self.model, {**restored, **layers})
        self._installed = layers


def make_optimizer(parameters: list[nn.Parameter], fused: bool = True) -> torch.optim.Optimizer:
    """AdamW that does all its work and leaves the parameters where they are: with a learning rate
    of 0 the hundredth step computes the same as the first."""
    return torch.optim.AdamW(parameters, lr=0.0, fused=fused)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": make_optimizer,
    "adamw-unfused": partial(make_optimizer, fused=False),
    "sgd": partial(torch.optim.SGD, lr=0.0),
}
"""By the names of `jobs.training_job.OPTIMIZERS`."""


class TrainingStep:
    """One variant of a shared model, as phases of a workload."""

    def __init__(
        self,
        shared: SharedModel,
        layers: Mapping[str, nn.Module],
        cast: Cast = nullcontext,
        region: str = "feed-forward",
    ) -> None:
        """`region` is what the layers are called where they are timed inside the step."""
        self.shared = shared
        self.layers = layers
        self.cast = cast
        self.region = region
        self.call: Callable[..., Any] = shared.model
        own = [p for layer in layers.values() for p in layer.parameters()]
        self.optimizers = [shared.optimizer, *([shared.make_optimizer(own)] if own else [])]

    def prepare(self) -> None:
        """Put this variant's layers in, and clear all gradients."""
        self.shared.swap_in(self.layers)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def forward(self) -> Tensor:
        ids = self.shared.ids
        with self.cast():
            loss: Tensor = self.call(input_ids=ids, labels=ids).loss
        return loss

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self, _: None) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    @property
    def phases(self) -> dict[str, Callable[..., Any]]:
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.update}

    def find_comparable(self) -> dict[str, nn.Parameter]:
        """Parameters whose gradients tell whether the step is right: all norms and biases, which
        cover every part of the backward pass and are small, and those of the last swapped layer,
        if there is one.

        Left out are the other swapped layers, and those whose results go through a ReLU: where a
        value before it is next to 0, rounding decides whether its token counts. Nor are the biases
        of keys compared, which the softmax does not see.
        """
        self.prepare()
        *others, last = [*self.layers] or [""]
        return {
            name: parameter
            for name, parameter in self.shared.model.named_parameters()
            if (parameter.dim() == 1 or (last and name.startswith(f"{last}.")))
            and not name.endswith(FICKLE)
            and name.rpartition(".")[0] not in others
        }

    @contextmanager
    def instrument(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Time this variant's layers inside the step."""
        with time_modules({self.region: list(self.layers.values())}, stopwatch):
            yield


@contextmanager
def time_modules(
    regions: Mapping[str, Sequence[nn.Module]], stopwatch: Stopwatch
) -> Iterator[None]:
    """Time these modules, forward and backward, by hooks. What torch itself does to hook into a
    module's backward pass, a few microseconds, falls into its forward region."""
    hooks = [
        hook
        for region, modules in regions.items()
        for module in modules
        for hook in _hook(module, region, stopwatch)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(module: nn.Module, region: str, stopwatch: Stopwatch) -> tuple[RemovableHandle, ...]:
    forward, backward = f"forward/{region}", f"backward/{region}"
    return (
        module.register_forward_pre_hook(lambda *_: stopwatch.start(forward)),
        module.register_forward_hook(lambda *_: stopwatch.stop(forward)),
        module.register_full_backward_pre_hook(lambda *_: stopwatch.start(backward)),
        module.register_full_backward_hook(lambda *_: stopwatch.stop(backward)),
    )


def make_workload(job: TrainingJob, setting: Setting) -> Workload:
    """Jobs that differ only in `linear`, and settings only in autocast, share one model."""
    shared = _share(job, setting)
    step = TrainingStep(shared, _make_layers(shared, job.linear), setting.cast, job.swapped)
    return replace(_make_phases(job, step, setting), notes=list_notes(job.linear, setting.device))


def make_reference(job: TrainingJob, setting: Setting) -> Workload:
    """The same, the swapped layers in the plain formula of nn.Linear."""
    shared = _share(job, setting)
    layers = {name: Plain(layer) for name, layer in _make_layers(shared, job.linear).items()}
    return _make_phases(job, TrainingStep(shared, layers, setting.cast, job.swapped), setting)


def _make_phases(job: TrainingJob, step: TrainingStep, setting: Setting) -> Workload:
    shape = job.shape
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


def _share(job: TrainingJob, setting: Setting) -> SharedModel:
    batch = (job.micro_batch, job.seq_len)
    return _share_model(job.shape, batch, setting.device, setting.dtype, job.swapped)


@lru_cache(maxsize=1)
def _share_model(
    shape: Shape, batch: tuple[int, int], device: str, dtype: str, swapped: str
) -> SharedModel:
    model = build_from_transformers(shape, device=device, dtype=dtype)
    architecture = ARCHITECTURES[shape.architecture]
    patterns = {"feed-forward": architecture.feed_forward, "linear": architecture.blocks}
    return SharedModel(
        model,
        ids=torch.randint(shape.vocabulary, batch, device=device),
        swapped=find_linear(model, patterns[swapped]),
    )


def _make_layers(shared: SharedModel, spec: str) -> Mapping[str, nn.Module]:
    if spec == "dense":
        return shared.swapped
    # The same weights every time, whether or not the model had to be built first.
    torch.manual_seed(torch.initial_seed())
    return {name: make_alike(spec, name, old) for name, old in shared.swapped.items()}
