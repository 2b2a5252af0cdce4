"""What experts add to the memory of a block that has a single feed-forward part.

Models of the library transformers are surveyed with one feed-forward part, and this is added: the
difference between a block of ours with the experts and one without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flopwatch.jobs.activation_memory import Sizes, list_block
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.step_memory import Stage
from flopwatch.jobs.training_job import TrainingJob


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Of one block."""

    parameters: int
    kept_bytes: int
    """For the backward pass."""
    cached_bytes: int
    """To the end of the forward pass."""
    forward_bytes: int
    """For a moment, where the forward pass holds most,"""
    backward_bytes: int
    """and the backward pass."""


def count_expert_growth(job: TrainingJob, *, on_host: bool) -> Growth:
    """
    >>> job = TrainingJob("llama-160m:experts=8:active_experts=2", 128, precision="fp32")
    >>> count_expert_growth(job, on_host=True).parameters == 7 * 3 * 768 * 3072 + 8 * 768
    True
    """
    dense = replace(job, model=replace(job.shape, experts=None, active_experts=None))
    with_experts = list_block(Sizes(job, on_host=on_host), has_experts=True)
    without = list_block(Sizes(dense, on_host=on_host), has_experts=False)
    return Growth(
        parameters=_count_block_parameters(job) - _count_block_parameters(dense),
        kept_bytes=_sum(with_experts, "kept_bytes") - _sum(without, "kept_bytes"),
        cached_bytes=_sum(with_experts, "cached_bytes") - _sum(without, "cached_bytes"),
        forward_bytes=_find_most(with_experts, "forward_bytes", without),
        backward_bytes=_find_most(with_experts, "backward_bytes", without),
    )


def _count_block_parameters(job: TrainingJob) -> int:
    one, two = (count_parameters(replace(job.shape, layers=layers)) for layers in (1, 2))
    return two - one


def _sum(stages: Sequence[Stage], field: str) -> int:
    return sum(getattr(stage, field) for stage in stages)


def _find_most(stages: Sequence[Stage], field: str, others: Sequence[Stage]) -> int:
    """By how much the most that a stage holds for a moment is more than that of the others."""
    most: list[int] = [max(getattr(stage, field) for stage in each) for each in (stages, others)]
    return max(0, most[0] - most[1])
