"""What a training step holds in memory, predicted: what stays, what grows, and when it is most.

A step is a row of stages (`jobs.activation_memory`): the embedding, each block's norms, attention
and feed-forward part, the head, the loss. Each stage keeps tensors for the backward pass, which
goes through the stages in reverse, frees what they kept and leaves gradients. So memory is most

    at the end of the forward pass, where everything is kept and the loss has copies of the logits,
    in the backward pass, where gradients grow while what was kept shrinks: in its first stages
    where activations are larger than weights, in its last ones where they are not,
    or in the optimizer, where all gradients are there.

The parameters and the optimizer's state are held throughout: gradients are None when a step begins,
and the state is made by the first step. Only tensors are counted, not what else a process needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from flopwatch.jobs.training_job import TrainingJob

MOMENTS = {"adamw": 2, "adamw-unfused": 2, "sgd": 0}
"""Values that an optimizer keeps for each parameter, in the parameter's own dtype."""


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    element_bytes: int
    count: int = 1
    """How many there are, one in every block."""

    @property
    def size_bytes(self) -> int:
        """Of one."""
        return prod(self.shape) * self.element_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A part of the forward pass and its counterpart in the backward pass."""

    name: str
    kept: Sequence[Tensor] = ()
    """What the backward pass needs of it."""
    gradient_bytes: int = 0
    """Of its parameters."""
    forward_bytes: int = 0
    """Most that it holds beyond what it keeps, while it is computed."""
    cached_bytes: int = 0
    """What is held from here to the end of the forward pass, and not needed after it."""
    backward_bytes: int = 0
    """Most that its backward pass holds beyond what the stages up to this one keep and the
    gradients of those after it; at least the gradient that it is given."""

    @property
    def kept_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.kept)


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """What is there at one time of a step, besides parameters and the optimizer's state."""

    name: str
    activation_bytes: int = 0
    gradient_bytes: int = 0
    temporary_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.activation_bytes + self.gradient_bytes + self.temporary_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMemory:
    """What a step needs in a process that has all of the model. Bytes, but for `parameters` and
    `layers`."""

    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    """Tables of positions, and the input."""
    gradient_bytes: int
    """Of all parameters, when the backward pass is done."""
    optimizer_bytes: int
    layers: int
    block_bytes: int
    """What one block keeps for the backward pass."""
    rest_bytes: int
    """What everything but the blocks keeps."""
    forward: Moment
    """Where the forward pass holds most,"""
    backward: Moment
    """and the backward pass,"""
    optimizer: Moment
    """and the optimizer."""
    tensors: tuple[Tensor, ...]
    """The largest ones, each name once."""

    @property
    def activation_bytes(self) -> int:
        """What is kept at the end of the forward pass."""
        return self.layers * self.block_bytes + self.rest_bytes

    @property
    def peak(self) -> Moment:
        return max(self.forward, self.backward, self.optimizer, key=lambda m: m.total_bytes)

    @property
    def forward_peak_bytes(self) -> int:
        """Of a forward pass that a backward pass shall follow, without an optimizer's state."""
        return self.parameter_bytes + self.buffer_bytes + self.forward.total_bytes

    @property
    def backward_peak_bytes(self) -> int:
        """Of forward and backward, without an optimizer's state."""
        most = max(self.forward.total_bytes, self.backward.total_bytes)
        return self.parameter_bytes + self.buffer_bytes + most

    @property
    def peak_bytes(self) -> int:
        """Of whole steps, from the second on."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """What there is at the peak of a step: it adds up to all tensors of the process."""
        peak = self.peak
        return {
            "parameters": self.parameter_bytes,
            "buffers": self.buffer_bytes,
            "optimizer state": self.optimizer_bytes,
            "activations": peak.activation_bytes,
            "gradients": peak.gradient_bytes,
            "temporary": peak.temporary_bytes,
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "tensors": [{**asdict(each), "size_bytes": each.size_bytes} for each in self.tensors],
            "activation_bytes": self.activation_bytes,
            "forward_peak_bytes": self.forward_peak_bytes,
            "backward_peak_bytes": self.backward_peak_bytes,
            "peak_bytes": self.peak_bytes,
            "peak": self.peak.name,
            "parts": self.parts(),
        }


def find_forward_peak(stages: Sequence[Stage]) -> Moment:
    moments = []
    kept_bytes = cached_bytes = 0
    for stage in stages:
        kept_bytes += stage.kept_bytes
        cached_bytes += stage.cached_bytes
        moments.append(
            Moment(
                name=f"forward, {stage.name}",
                activation_bytes=kept_bytes,
                temporary_bytes=stage.forward_bytes + cached_bytes,
            )
        )
    return max(moments, key=lambda moment: moment.total_bytes)


def find_backward_peak(stages: Sequence[Stage]) -> Moment:
    moments = []
    kept_bytes = sum(stage.kept_bytes for stage in stages)
    gradient_bytes = 0
    for stage in reversed(stages):
        moments.append(
            Moment(
                name=f"backward, {stage.name}",
                activation_bytes=kept_bytes,
                gradient_bytes=gradient_bytes,
                temporary_bytes=stage.backward_bytes,
            )
        )
        kept_bytes -= stage.kept_bytes
        gradient_bytes += stage.gradient_bytes
    return max(moments, key=lambda moment: moment.total_bytes)


def find_update_peak(
    job: TrainingJob, all_bytes: int, largest_bytes: int, *, on_host: bool
) -> Moment:
    """In the optimizer, given the bytes of all parameters and of the largest one. One kernel needs
    nothing else. Operations one at a time take roots and divide them: on a host for one
    parameter after the other, on an accelerator for all at once."""
    roots_bytes = 2 * largest_bytes if on_host else all_bytes
    return Moment(
        name="optimizer",
        gradient_bytes=all_bytes,
        temporary_bytes=roots_bytes if job.optimizer == "adamw-unfused" else 0,
    )


def choose_largest(tensors: Sequence[Tensor], number: int = 8) -> tuple[Tensor, ...]:
    return tuple(sorted(tensors, key=lambda tensor: -tensor.size_bytes)[:number])
