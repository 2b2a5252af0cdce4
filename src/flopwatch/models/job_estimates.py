"""FLOPs and memory of any training job: by formulas where `jobs` has them, by the counts of
`layers.registry` where linear layers are swapped, and else by a step on tensors without memory
(`models.survey`)."""

from __future__ import annotations

from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs import activation_memory
from flopwatch.jobs.flops import count_micro_batch_flops, scale_to_step, spread_flops
from flopwatch.jobs.model_shapes import ARCHITECTURES
from flopwatch.jobs.rank_memory import estimate_rank
from flopwatch.jobs.step_memory import Device, StepMemory
from flopwatch.jobs.training_job import TrainingJob


def count_flops(job: TrainingJob) -> dict[str, dict[str, float]]:
    """Of a step of all ranks, by phase and dtype; nothing where they are not known."""
    return scale_to_step(job, count_once(job))


def count_once(job: TrainingJob) -> dict[str, dict[str, float]]:
    """Of one micro-batch on one rank."""
    if job.shape.architecture in ARCHITECTURES:
        if job.is_dense:
            return count_micro_batch_flops(job)
        from flopwatch.layers.swapped_flops import count_swapped_parts

        return count_swapped_parts(job)
    if not job.is_dense or job.recompute != "none":
        return {}
    from flopwatch.models.survey import survey

    try:
        found = survey(job)
    except UsageError:  # not every architecture runs on fake tensors
        return {}
    return spread_flops(job, found.forward_flops, found.parameters)


def estimate_step(job: TrainingJob, device: Device) -> StepMemory:
    """What a step holds in a process that has all of the model."""
    if job.shape.is_ours:
        return activation_memory.estimate_step(job, device)
    from flopwatch.models import survey

    return survey.estimate(job, device)


def estimate_memory(job: TrainingJob, device: Device) -> dict[str, float]:
    """Bytes by part on one rank, where they are most; nothing where they are not known."""
    if not job.is_dense:  # how much other layers keep is not known
        return {}
    try:
        parts = estimate_rank(job, device, estimate=estimate_step)
    except (UsageError, Unsupported):  # it fails when it is built, with a reason
        return {}
    return {part: float(size) for part, size in parts.items()}
