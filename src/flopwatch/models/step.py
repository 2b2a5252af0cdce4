"""A training step of a model in which layers can be exchanged.

Variants of a model that differ in some layers share everything else: one model in memory, the same
tensors at the same places, so that what differs between their times is those layers. A variant
puts its own layers in before each step, which is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from flopwatch.layers.replacement import install
from flopwatch.models.counts import Swapped
from flopwatch.suite import Stopwatch


class SharedModel:
    """What all variants have in common."""

    def __init__(self, model: nn.Module, ids: Tensor, exchanged: Mapping[str, nn.Module]) -> None:
        """`model` is called like one of transformers: with input_ids and labels, it gives an object
        with a loss. `exchanged` are the layers that variants replace, by name."""
        self.model = model
        self.ids = ids
        self.exchanged = exchanged
        own = {id(p) for layer in exchanged.values() for p in layer.parameters()}
        self.optimizer = make_optimizer([p for p in model.parameters() if id(p) not in own])
        self._installed = exchanged

    def exchange(self, layers: Mapping[str, nn.Module]) -> None:
        """Put these layers in. Those before them keep no gradients, which would fill the memory
        with those of all variants."""
        for layer in self._installed.values():
            layer.zero_grad(set_to_none=True)
        install(self.model, layers)
        self._installed = layers


def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW that does all its work and leaves the parameters where they are: with a learning rate
    of 0 the hundredth step computes the same as the first."""
    return torch.optim.AdamW(parameters, lr=0.0, fused=True)


class TrainingStep:
    """One variant of a shared model, as phases of a workload."""

    def __init__(
        self,
        shared: SharedModel,
        layers: Mapping[str, nn.Module],
        cast: Callable[[], AbstractContextManager[object]] = nullcontext,
        region: Swapped = "feed-forward",
    ) -> None:
        """`region` is what the layers are called where they are timed inside the step."""
        self.shared = shared
        self.layers = layers
        self.cast = cast
        self.region = region
        own = [p for layer in layers.values() for p in layer.parameters()]
        self.optimizers = [shared.optimizer, make_optimizer(own)]

    def prepare(self) -> None:
        """Put this variant's layers in, and clear all gradients."""
        self.shared.exchange(self.layers)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def forward(self) -> Tensor:
        ids = self.shared.ids
        with self.cast():
            loss: Tensor = self.shared.model(input_ids=ids, labels=ids).loss
        return loss

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self, _: None) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def find_comparable(self) -> dict[str, nn.Parameter]:
        """Parameters whose gradients tell whether the step is right: all norms and biases, which
        cover every part of the backward pass and are small, and those of the last exchanged layer.

        Left out are the other exchanged layers, since where a value before a ReLU is next to 0,
        rounding decides whether its token counts; and the biases of keys, which the softmax does
        not see: their gradient is 0 but for noise.
        """
        self.prepare()
        *others, last = self.layers
        return {
            name: parameter
            for name, parameter in self.shared.model.named_parameters()
            if (parameter.dim() == 1 or name.startswith(f"{last}."))
            and not name.endswith("k_proj.bias")
            and name.rpartition(".")[0] not in others
        }

    @contextmanager
    def instrument(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Time this variant's layers inside the step, by hooks. What torch itself does to hook
        into a layer's backward pass, a few microseconds, falls into its forward region."""
        forward, backward = f"forward/{self.region}", f"backward/{self.region}"
        hooks = [
            hook
            for layer in self.layers.values()
            for hook in (
                layer.register_forward_pre_hook(lambda *_: stopwatch.start(forward)),
                layer.register_forward_hook(lambda *_: stopwatch.stop(forward)),
                layer.register_full_backward_pre_hook(lambda *_: stopwatch.start(backward)),
                layer.register_full_backward_hook(lambda *_: stopwatch.stop(backward)),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
