"""A training step of a model in which layers can be exchanged.

Variants of a model that differ in some layers share everything else: one model in memory, the same
tensors at the same places, so that what differs between their times is those layers. A variant
puts its own layers in before each step, which is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from flopwatch.layers.replacement import install
from flopwatch.suite import Stopwatch


@dataclass(frozen=True, kw_only=True)
class SharedModel:
    """What all variants have in common."""

    model: nn.Module
    """Called like a transformers model: with input_ids and labels, gives an object with a loss."""
    ids: Tensor
    exchanged: Mapping[str, nn.Module]
    """The layers that the model came with and that variants replace, by name."""
    hidden_size: int
    layers: int
    optimizer: torch.optim.Optimizer = field(init=False)
    """Of all parameters that are not exchanged."""

    def __post_init__(self) -> None:
        own = {id(p) for layer in self.exchanged.values() for p in layer.parameters()}
        kept = [p for p in self.model.parameters() if id(p) not in own]
        object.__setattr__(self, "optimizer", make_optimizer(kept))


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
    ) -> None:
        self.shared = shared
        self.layers = layers
        self.cast = cast
        own = [p for layer in layers.values() for p in layer.parameters()]
        self.optimizers = [shared.optimizer, make_optimizer(own)]

    def prepare(self) -> None:
        """Put this variant's layers in, and clear all gradients."""
        install(self.shared.model, self.layers)
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

    def vectors(self) -> dict[str, nn.Parameter]:
        """Biases and norms between the exchanged layers: their gradients, compared, cover every
        part of the backward pass, and are small. The exchanged layers' own are left out: where a
        value before a ReLU is next to 0, rounding decides whether its token counts."""
        self.prepare()
        return {
            name: parameter
            for name, parameter in self.shared.model.named_parameters()
            # The softmax does not see a key's bias: its gradient is 0, and what is there is noise.
            if parameter.dim() == 1
            and not name.endswith("k_proj.bias")
            and name.rpartition(".")[0] not in self.layers
        }

    @contextmanager
    def instrument(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Time this variant's layers inside the step, by hooks."""
        hooks = [
            hook
            for layer in self.layers.values()
            for hook in (
                layer.register_forward_pre_hook(lambda *_: stopwatch.start(FORWARD)),
                layer.register_forward_hook(lambda *_: stopwatch.stop(FORWARD)),
                layer.register_full_backward_pre_hook(lambda *_: stopwatch.start(BACKWARD)),
                layer.register_full_backward_hook(lambda *_: stopwatch.stop(BACKWARD)),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


FORWARD, BACKWARD = "forward/feed-forward", "backward/feed-forward"
