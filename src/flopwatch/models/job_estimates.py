"""FLOPs and memory of any training job: by formulas where `jobs` has them, by the counts of
`layers.registry` where linear layers are of another kind, and else by a step on tensors without
memory (`models.survey`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from flopwatch.devices.kinds import is_host
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs import activation_memory
from flopwatch.jobs.flops import (
    ADAMW_FLOPS,
    OPTIMIZER_FLOPS,
    count_flops_by_part,
    count_micro_batch_flops,
    scale,
    scale_to_step,
    spread_flops,
)
from flopwatch.jobs.model_shapes import ARCHITECTURES
from flopwatch.jobs.parameters import Part, count_weights
from flopwatch.jobs.rank_memory import estimate_rank_memory
from flopwatch.jobs.step_memory import StepMemory
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.layers import registry
from flopwatch.settings import Device

Swapped = Literal["feed-forward", "linear"]
"""Which layers of a model are swapped: those of its feed-forward parts, or all linear layers of its
blocks, those of attention too."""
Flops = dict[str, dict[str, float]]
"""By phase, or part of one, and dtype."""


def count_flops(job: TrainingJob, device: str | None = None) -> Flops:
    """Of a step of all ranks, by phase and dtype; nothing where they are not known. With a device,
    as it computes swapped layers (`registry.count_flops_by_dtype`)."""
    return scale_to_step(job, count_once(job, device))


def count_once(job: TrainingJob, device: str | None = None) -> Flops:
    """Of one micro-batch on one rank."""
    if job.shape.architecture in ARCHITECTURES:
        if job.is_dense:
            return count_micro_batch_flops(job)
        return count_swapped_parts(job, device)
    if not job.is_dense or job.recompute != "none":
        return {}
    from flopwatch.models.survey import survey

    try:
        found = survey(job)
    except UsageError:  # not every architecture runs on fake tensors
        return {}
    return spread_flops(job, found.forward_flops, found.parameters)


def count_swapped_flops(job: TrainingJob, device: str | None = None) -> Flops:
    """Of one micro-batch, without recomputation: of its phases, and of the swapped layers inside
    them; nothing where a spec does not say, or where a pattern chooses the layers.

    >>> job = TrainingJob("opt-125m", 512, precision="fp32")
    >>> count_swapped_flops(job)["forward/feed-forward"]
    {'float32': 57982058496.0}
    """
    if job.swapped not in get_args(Swapped):
        return {}
    dtype, forward = job.arithmetic.matmul_dtype, _count_forward(job)
    everything = sum(forward.values()) - forward["padding"]
    swapped = forward["feed-forward"]
    if job.swapped == "linear":
        swapped += forward["qkv"] + forward["output"]
    # Of one weight and token, whose dense FLOPs are 2: a spec's FLOPs are in proportion to those.
    unit = registry.count_flops_by_dtype(job.linear, 1, 1, 1, dtype, device)
    density = registry.find_density(registry.parse(job.linear))
    if not unit or density is None:
        return {}
    inside = {phase: scale(counts, swapped / 2) for phase, counts in unit.items()}
    others = {"forward": everything - swapped, "backward": 2 * (everything - swapped)}
    parameters = job.parameters - _count_swapped_weights(job) * (1 - density)
    return {
        **{phase: _add(counts, dtype, others[phase]) for phase, counts in inside.items()},
        "optimizer": {job.arithmetic.dtype: ADAMW_FLOPS * parameters},
        **{f"{phase}/{job.swapped}": counts for phase, counts in inside.items()},
    }


def count_swapped_parts(job: TrainingJob, device: str | None = None) -> Flops:
    """The same with recomputation, the job's optimizer, and other parts of the model inside the
    phases."""
    flops = count_swapped_flops(job, device)
    if not flops:
        return {}
    dtype, forward = job.arithmetic.matmul_dtype, _count_forward(job)
    scores = forward["scores"] + forward["values"]
    parts = {"head": forward["head"]}
    if job.swapped == "feed-forward":
        parts["attention"] = forward["qkv"] + forward["output"] + scores
    flops |= {f"forward/{part}": {dtype: float(count)} for part, count in parts.items()}
    flops |= {f"backward/{part}": {dtype: 2.0 * count} for part, count in parts.items()}
    if job.recompute == "selective":
        _add_recomputed_attention(flops, scores, dtype, job.swapped)
    elif job.recompute == "full":
        _add_recomputed_blocks(flops, forward["head"] + forward["embedding"], dtype)
    relative = OPTIMIZER_FLOPS[job.optimizer] / ADAMW_FLOPS
    return {**flops, "optimizer": scale(flops["optimizer"], relative)}


def _count_swapped_weights(job: TrainingJob) -> int:
    """Of the layers that are swapped, those of all experts too."""
    weights = count_weights(job.shape, active=False)
    parts: tuple[Part, ...] = ("feed-forward", "qkv", "output")
    return sum(weights[part] for part in (parts if job.swapped == "linear" else parts[:1]))


def _count_forward(job: TrainingJob) -> dict[Part, int]:
    return {part: passes.forward for part, passes in count_flops_by_part(job).items()}


def _add_recomputed_blocks(flops: Flops, outside: int, dtype: str) -> None:
    """Add all blocks of the forward pass to the backward pass."""
    for part in ("", "/attention", "/feed-forward", "/linear"):
        left_out = outside if part == "" else 0.0
        for each, count in flops.get(f"forward{part}", {}).items():
            again = count - (left_out if each == dtype else 0.0)
            flops[f"backward{part}"] = _add(flops[f"backward{part}"], each, again)


def _add_recomputed_attention(flops: Flops, scores: int, dtype: str, swapped: str) -> None:
    """Add attention's matmuls and the swapped layers to the backward pass: only results of plain
    linear layers are kept."""
    again = {"attention": {dtype: float(scores)}, swapped: flops[f"forward/{swapped}"]}
    for part, counts in again.items():
        for key in ("backward", f"backward/{part}"):
            if key in flops:  # attention has no count of its own where its layers are swapped
                for each, count in counts.items():
                    flops[key] = _add(flops[key], each, count)


def _add(counts: Mapping[str, float], dtype: str, more: float) -> dict[str, float]:
    return {**counts, dtype: counts.get(dtype, 0.0) + more}


def estimate_step(job: TrainingJob, *, on_host: bool) -> StepMemory:
    """What a step holds in a process that has all of the model."""
    if job.shape.is_ours:
        return activation_memory.estimate_step(job, on_host=on_host)
    from flopwatch.models import survey

    return survey.estimate(job, on_host=on_host)


def estimate_memory(job: TrainingJob, device: Device) -> dict[str, float]:
    """Bytes by part on one rank, where they are most; nothing where they are not known."""
    if not job.is_dense:  # how much other layers keep is not known
        return {}
    try:
        parts = estimate_rank_memory(job, on_host=is_host(device), estimate=estimate_step)
    except (UsageError, Unsupported):  # it fails when it is built, with a reason
        return {}
    return {part: float(size) for part, size in parts.items()}
