"""A training job as the cost model sees it: dimensions, batch, and how ranks share the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.step_flops import count_parameters
from flopwatch.jobs.variants import OPTIMIZERS, OTHER_NAMES, Recompute, Sharding


@dataclass(frozen=True, kw_only=True, slots=True)
class Arithmetic:
    """What numbers a job computes with, and how many bytes each of them takes."""

    products: str
    """The dtype of linear layers, as peaks are listed by."""
    activations: str
    """The dtype of attention, the head, and of what passes between operations."""
    element_bytes: int
    """Of an activation; operands of 8 bits too are read with 16, to be rounded."""
    parameter_bytes: int
    """Of a parameter, its gradient, and each of the optimizer's values."""
    gathered_bytes: int
    """Of a parameter on its way to where it is computed with."""
    reduced_bytes: int
    """Of a gradient on its way to where it is summed up."""
    is_autocast: bool = False


def _autocast(products: str, activations: str) -> Arithmetic:
    return Arithmetic(
        products=products,
        activations=activations,
        element_bytes=2,
        parameter_bytes=4,
        gathered_bytes=2,
        reduced_bytes=4,
        is_autocast=True,
    )


def _plain(dtype: str, size_bytes: int) -> Arithmetic:
    return Arithmetic(
        products=dtype,
        activations=dtype,
        element_bytes=size_bytes,
        parameter_bytes=size_bytes,
        gathered_bytes=size_bytes,
        reduced_bytes=size_bytes,
    )


ARITHMETICS = {
    "fp32": _plain("float32", 4),
    "tf32": _plain("tf32", 4),
    "bf16": _plain("bfloat16", 2),
    "bf16-mixed": _autocast("bfloat16", "bfloat16"),
    "fp16-mixed": _autocast("float16", "float16"),
    "fp8": _autocast("float8", "bfloat16"),
}
SPELLINGS = {
    **OTHER_NAMES,
    "amp_fp16": "fp16-mixed",
    "amp_fp8": "fp8",
}
"""What published tables call them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    shape: Shape
    tokens: int
    """Of a text."""
    micro_batch: int
    """Texts that a rank computes at a time."""
    accumulation: int = 1
    """Micro-batches of a step, on each rank."""
    ranks: int = 1
    sharding: Sharding = "full-shard"
    recompute: Recompute = "none"
    precision: str = "bf16-mixed"
    """A key of ARITHMETICS."""
    optimizer: str = "adamw"
    reduced_bytes: int | None = None
    """Of a gradient on its way to where it is summed up; None: as is usual for the precision."""

    @property
    def arithmetic(self) -> Arithmetic:
        return ARITHMETICS[self.precision]

    @property
    def micro_tokens(self) -> int:
        """That a rank computes at a time."""
        return self.micro_batch * self.tokens

    @property
    def step_tokens(self) -> int:
        """Of all ranks."""
        return self.micro_tokens * self.accumulation * self.ranks

    @property
    def parameters(self) -> int:
        return _count_parameters(self.shape)


@cache  # fits ask for it thousands of times
def _count_parameters(shape: Shape) -> int:
    return count_parameters(shape)


def make_job(shape: Shape, **given: Any) -> Job:
    """Of a shape that has room for the texts; refused where its cost does not follow from its
    dimensions."""
    job = Job(shape=shape, **given)
    if shape.architecture not in ARCHITECTURES:
        raise UsageError(
            f"how fast a {shape.architecture!r} trains does not follow from its dimensions alone; "
            f"write it as one of {', '.join(ARCHITECTURES)} with the same dimensions"
        )
    if job.optimizer not in OPTIMIZERS:
        raise UsageError(
            f"there is no optimizer {job.optimizer!r}; choose one of {', '.join(OPTIMIZERS)}"
        )
    return replace(job, shape=shape.stretch(job.tokens), precision=find_precision(job.precision))


def find_precision(name: str) -> str:
    """
    >>> find_precision("amp_bf16")
    'bf16-mixed'
    """
    found = SPELLINGS.get(name, name)
    if found not in ARITHMETICS:
        known = ", ".join([*ARITHMETICS, *SPELLINGS])
        raise UsageError(f"there is no precision {name!r}; choose one of {known}")
    return found
