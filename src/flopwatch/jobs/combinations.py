"""Which kinds of parallelism go together in a job that is run, and why others do not.

What is a matter of numbers (heads that ranks do not divide, say) is refused before anything is
measured. What PyTorch cannot compute is a rule, with its reason: a row of the results has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.layer_parts import has_experts
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parallelism import SCHEDULES
from flopwatch.jobs.training_job import TrainingJob


@dataclass(frozen=True, slots=True)
class Rule:
    """A combination that is not run."""

    name: str
    applies: Callable[[TrainingJob], bool]
    reason: str


def _splits_backward(job: TrainingJob) -> bool:
    return job.parallelism.pipeline > 1 and SCHEDULES[job.parallelism.schedule].splits_backward


RULES = (
    Rule(
        "tp x swapped layers",
        lambda job: job.parallelism.tensor > 1 and not job.is_dense,
        "tensor parallelism divides ordinary linear layers only; leave the other layers or tp out",
    ),
    Rule(
        "tp, pp or cp x models of transformers",
        lambda job: job.parallelism.model_ranks > 1 and not job.shape.is_ours,
        "how ranks divide a model of the library transformers is not known here; take the "
        "architecture decoder or gpt, or leave tp, pp and cp out",
    ),
    Rule(
        "zero-bubble schedules x ddp",
        lambda job: _splits_backward(job) and job.sharding in ("ddp", "zero1"),
        "DistributedDataParallel does not see gradients of weights that a schedule computes apart "
        "from the others; take none or full, or another schedule",
    ),
    Rule(
        "zero-bubble schedules x selective recomputation",
        lambda job: _splits_backward(job) and job.recompute == "selective",
        "what selective recomputation has kept is gone after one pass back, and this schedule "
        "takes two; take recompute-full or none, or another schedule",
    ),
    Rule(
        "zero-bubble schedules x compiled",
        lambda job: _splits_backward(job) and job.compiled,
        "torch.compile does not split the backward pass as this schedule needs it; leave compiled "
        "out, or take another schedule",
    ),
    Rule(
        "ddp x tp x recomputation",
        lambda job: (
            job.sharding in ("ddp", "zero1")
            and job.parallelism.tensor > 1
            and job.recompute != "none"
        ),
        "DistributedDataParallel has the divided parameters in the forward pass only, and blocks "
        "that are recomputed need them in the backward pass; take none or full",
    ),
    Rule(
        "zero1 x tp or pp",
        lambda job: job.sharding == "zero1" and job.parallelism.model_ranks > 1,
        "torch's ZeroRedundancyOptimizer takes whole models only; take zero2 or full",
    ),
    Rule(
        "ep x models of transformers",
        lambda job: job.parallelism.expert > 1 and not job.shape.is_ours,
        "how ranks divide the experts of a model of the library transformers is not known here; "
        "take the architecture decoder with the same experts, or leave ep out",
    ),
    Rule(
        "ep x hybrid or zero1",
        lambda job: job.parallelism.expert > 1 and job.sharding in ("hybrid", "zero1"),
        "expert parallelism is measured with sharding none, ddp, zero2 and full only; take one of "
        "these",
    ),
    Rule(
        "ep x shards x selective recomputation",
        lambda job: (
            job.parallelism.expert > 1
            and job.sharding in ("zero2", "full")
            and job.recompute == "selective"
        ),
        "torch's selective checkpoint cannot gather sharded experts again; take "
        "recompute-full, or sharding ddp or none",
    ),
    Rule(
        "ep x compiled x recomputation",
        lambda job: job.parallelism.expert > 1 and job.compiled and job.recompute != "none",
        "torch.compile leaves a checkpoint with an all-to-all inside as it is, so that nothing "
        "would be compiled; leave compiled or the recomputation out",
    ),
    Rule(
        "tp or pp x experts",
        lambda job: (
            job.parallelism.tensor * job.parallelism.pipeline > 1 and has_mixtures(job.shape)
        ),
        "of a model with experts, ranks divide experts only; take ep, or leave tp and pp out",
    ),
)


def has_mixtures(shape: Shape) -> bool:
    """Whether any layer has experts."""
    return any(has_experts(shape, place) for place in range(shape.layers))


def require_combination(job: TrainingJob, *, on_host: bool) -> None:
    """Refuse what PyTorch does not compute, or not rightly."""
    if job.parallelism.context > 1:
        raise Unsupported(
            "torch's context parallelism has no attention for a CPU, only for GPUs; leave cp out, "
            "or predict it"
            if on_host
            else "context parallelism has not been tried on a GPU yet, and so is not measured; "
            "leave cp out, or predict it"
        )
    for rule in RULES:
        if rule.applies(job):
            raise Unsupported(rule.reason)


def require_divisible(job: TrainingJob) -> None:
    """Refuse numbers that do not go together."""
    split, shape = job.parallelism, job.shape
    if shape.heads % split.tensor:
        _refuse(
            f"tp={split.tensor} does not divide the {shape.heads} heads of {job.name}; choose a "
            "divisor"
        )
    if shape.feed_forward_size % split.tensor:
        _refuse(
            f"tp={split.tensor} does not divide the feed-forward size {shape.feed_forward_size} of "
            f"{job.name}; choose a divisor"
        )
    if split.sequence and job.seq_len % split.tensor:
        _refuse(
            f"sequence parallelism divides {job.seq_len} tokens among tp={split.tensor} ranks; "
            "choose a multiple"
        )
    if job.seq_len % (2 * split.context) and split.context > 1:
        _refuse(
            f"cp={split.context} ranks take two parts each of a sequence of {job.seq_len} tokens; "
            f"choose a multiple of {2 * split.context}"
        )
    if split.pipeline > 1:
        _require_pipeline(job)
    if split.expert > 1 and not has_mixtures(shape):
        _refuse(
            f"ep={split.expert} divides experts, and {job.name} has none; leave ep out, or take a "
            "mixture, such as small:experts=8:active_experts=2"
        )
    if shape.experts and shape.experts % split.expert:
        _refuse(
            f"ep={split.expert} does not divide the {shape.experts} experts of {job.name}; choose "
            "a divisor"
        )


def _require_pipeline(job: TrainingJob) -> None:
    split, schedule = job.parallelism, SCHEDULES[job.parallelism.schedule]
    least, most = schedule.virtual_stages
    if not least <= split.virtual_stages <= most:
        number = f"{least}" if least == most else f"{least} or more"
        _refuse(
            f"the schedule {split.schedule} takes {number} virtual stages on each rank, and not "
            f"{split.virtual_stages}; write pp{split.pipeline}:{split.schedule}:{least}"
            + (", or take the schedule interleaved" if most < split.virtual_stages else "")
        )
    if job.shape.layers < split.stages:
        _refuse(
            f"{job.name} has {job.shape.layers} layers, and {split.stages} stages of a pipeline "
            f"need at least one each; choose at most {job.shape.layers} stages"
        )
    needed = split.stages if split.schedule == "dualpipe-v" else split.pipeline
    if job.grad_accum < needed:
        _refuse(
            f"the schedule {split.schedule} on {split.pipeline} ranks needs at least {needed} "
            f"micro-batches a step on each data-parallel rank, and there are {job.grad_accum}; "
            "raise --grad-accum or --global-batch, or lower --micro-batch"
        )
    rounds = max(1, job.grad_accum // split.pipeline)
    if split.schedule in ("interleaved", "zero-bubble") and job.grad_accum % rounds:
        _refuse(
            f"the schedule {split.schedule} passes {job.grad_accum} micro-batches in {rounds} "
            f"rounds of equal size; choose a multiple of {split.pipeline}"
        )


def _refuse(sentence: str) -> NoReturn:
    raise UsageError(sentence)
