"""What a step holds on a rank that has a part of the model: some layers, or a part of each.

A stage of a pipeline has the parts of its layers, the first one the embedding, and the last one
head and loss. While it computes one micro-batch, it keeps what others need that have gone forward
and not yet back; how many, its schedule says:

    1f1b            as many as there are stages from this one on
    gpipe, looped-bfs   all of the step
    interleaved     those of its warm-up, and one more
    zero-bubble     the same, and on rank r of the pipeline r whose gradients of weights come later
    zbv, dualpipe-v     as many as there are ranks, in each of its stages; dualpipe-v has one more

torch keeps a buffer for what each micro-batch receives, all the time, and with a micro-batch what
the stage gave of it.

Tensor parallelism divides what lies inside attention and feed-forward, and logits; with sequence
parallelism the inputs of norms, too. What linear layers take in is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flopwatch.jobs.activation_memory import (
    FLOAT,
    Sizes,
    count_buffer_bytes,
    list_block,
    make_embedding,
    make_end,
)
from flopwatch.jobs.parallelism import SCHEDULES, divide_layers
from flopwatch.jobs.step_memory import (
    MOMENTS,
    Moment,
    Stage,
    StepMemory,
    Tensor,
    find_backward_peak,
    find_forward_peak,
    find_update_peak,
)
from flopwatch.jobs.training_job import TrainingJob

INSIDE = (
    "queries", "keys", "values", "attended values", "log-sums of scores", "attention weights",
    "attention.", "feed_forward.up", "feed_forward.down", "feed-forward, ", "gates", "head.",
    "log-probabilities",
)  # fmt: skip
"""How the names of tensors begin that tensor-parallel ranks divide."""
BETWEEN = ("inputs of norms", "results of norms", "statistics of norms", "inputs of blocks")
"""And of those that sequence parallelism divides as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Of a model: one stage of a pipeline."""

    stages: Sequence[Stage]
    is_first: bool
    is_last: bool

    @property
    def kept_bytes(self) -> int:
        return sum(stage.kept_bytes for stage in self.stages)

    @property
    def parameter_bytes(self) -> int:
        return sum(stage.gradient_bytes for stage in self.stages)


def estimate_divided_step(job: TrainingJob, rank: int, *, on_host: bool) -> StepMemory:
    """Of a rank of a job with tensor or pipeline parallelism, which computes a model of ours."""
    sizes, split = Sizes(job, on_host=on_host), job.parallelism
    numbers = split.find_stages(rank)
    layers = divide_layers(job.shape.layers, split.stages)
    parts = [_make_part(sizes, layers[number]) for number in numbers]
    parameter_bytes = sum(part.parameter_bytes for part in parts)
    if job.shape.is_tied and split.pipeline == 1:  # it is one weight, whose gradient has two parts
        parameter_bytes -= sizes.weigh(job.shape.rows, job.shape.hidden_size) // split.tensor
    moments = [_find_moments(sizes, parts, part, numbers) for part in parts]
    forward, backward = (
        max(each, key=lambda moment: moment.total_bytes) for each in zip(*moments, strict=True)
    )
    return StepMemory(
        parameters=parameter_bytes // sizes.parameter_bytes,
        parameter_bytes=parameter_bytes,
        buffer_bytes=len(parts) * count_buffer_bytes(sizes) + _count_received_bytes(sizes, parts),
        gradient_bytes=parameter_bytes,
        optimizer_bytes=MOMENTS[job.optimizer] * parameter_bytes,
        layers=sum(len(layers[number]) for number in numbers),
        block_bytes=sum(_divide(sizes, stage).kept_bytes for stage in list_block(sizes)),
        rest_bytes=0,
        forward=forward,
        backward=backward,
        optimizer=find_update_peak(job, parameter_bytes, 0, on_host=on_host),
        tensors=(),
    )


def _make_part(sizes: Sizes, layers: range) -> Part:
    is_first, is_last = layers.start == 0, layers.stop == sizes.job.shape.layers
    block = [_divide(sizes, stage) for stage in list_block(sizes)]
    stages = [stage for _ in layers for stage in block]
    if is_first:
        stages.insert(0, _divide(sizes, make_embedding(sizes)))
    if is_last:
        stages += [_divide(sizes, stage) for stage in make_end(sizes)]
    return Part(stages=stages, is_first=is_first, is_last=is_last)


def _divide(sizes: Sizes, stage: Stage) -> Stage:
    """What a tensor-parallel rank has of it."""
    split = sizes.job.parallelism
    if split.tensor == 1:
        return stage
    is_norm = "norm" in stage.name
    between = split.tensor if split.sequence else 1
    ranks = between if is_norm else split.tensor
    # The sum of what ranks have computed, or what they have gathered, is whole for a moment.
    whole_bytes = 0 if is_norm else sizes.stream
    if stage.name == "loss":  # of divided logits, exponentials stay until they are summed up
        whole_bytes = sizes.tensor("", sizes.shape.rows, element_bytes=FLOAT).size_bytes // ranks
    return replace(
        stage,
        kept=[_divide_tensor(tensor, split.tensor, between) for tensor in stage.kept],
        gradient_bytes=stage.gradient_bytes if is_norm else stage.gradient_bytes // split.tensor,
        forward_bytes=stage.forward_bytes // ranks + whole_bytes,
        cached_bytes=stage.cached_bytes // ranks,
        backward_bytes=stage.backward_bytes // ranks + whole_bytes,
    )


def _divide_tensor(tensor: Tensor, inside: int, between: int) -> Tensor:
    ranks = 1
    if tensor.name.startswith(INSIDE):
        ranks = inside
    elif tensor.name.startswith(BETWEEN):
        ranks = between
    *others, last = tensor.shape
    return replace(tensor, shape=(*others, max(1, last // ranks)))


def _find_moments(
    sizes: Sizes, parts: Sequence[Part], part: Part, numbers: Sequence[int]
) -> tuple[Moment, Moment]:
    """Where this stage of a rank's holds most in its forward and its backward pass, beside what
    other micro-batches keep."""
    place = parts.index(part)
    waiting = count_waiting(sizes.job, numbers)
    others_bytes = sum(
        (number - (other is part)) * (other.kept_bytes + _count_given_bytes(sizes, other))
        for number, other in zip(waiting, parts, strict=True)
    )
    if sizes.job.parallelism.pipeline > 1 and waiting[place]:
        others_bytes += _count_given_bytes(sizes, part)
    forward, backward = find_forward_peak(part.stages), find_backward_peak(part.stages)
    return (
        replace(forward, activation_bytes=forward.activation_bytes + others_bytes),
        replace(backward, activation_bytes=backward.activation_bytes + others_bytes),
    )


def _count_given_bytes(sizes: Sizes, part: Part) -> int:
    """What a stage gives of a micro-batch, less what it keeps of it anyway: its input, which is in
    the buffer that it was received in."""
    split = sizes.job.parallelism
    if split.pipeline == 1:
        return 0
    stream = sizes.stream // (split.tensor if split.sequence else 1)
    logits = sizes.count(sizes.shape.rows) // split.tensor
    return (logits if part.is_last else stream) - (0 if part.is_first else stream)


def _count_received_bytes(sizes: Sizes, parts: Sequence[Part]) -> int:
    split = sizes.job.parallelism
    if split.pipeline == 1:
        return 0
    stream = sizes.stream // (split.tensor if split.sequence else 1)
    received = sum((not part.is_first) + (not part.is_last) for part in parts)
    return received * sizes.job.grad_accum * stream


def count_waiting(job: TrainingJob, numbers: Sequence[int]) -> list[int]:
    """Micro-batches that each of a rank's stages has on their way where that is most, the one that
    is computed among them.

    >>> from flopwatch.jobs.parallelism import Parallelism
    >>> split = Parallelism(pipeline=4)
    >>> job = TrainingJob("small", 128, grad_accum=8, parallelism=split)
    >>> [count_waiting(job, [stage]) for stage in range(4)]
    [[4], [3], [2], [1]]
    """
    split, most = job.parallelism, job.grad_accum
    if split.pipeline == 1:
        return [1 for _ in numbers]
    schedule = SCHEDULES[split.schedule]
    if schedule.keeps_all:
        return [most for _ in numbers]
    if schedule.is_v:
        more = split.schedule == "dualpipe-v" and numbers[0] > 0
        return [min(most, split.pipeline + (more and place == 0)) for place in range(len(numbers))]
    if split.virtual_stages == 1:
        return [min(most, split.pipeline - number) for number in numbers]
    # As Interleaved1F1B counts its warm-up: rounds of micro-batches through all but the last stage.
    in_round = most // max(1, most // split.pipeline)
    later = split.pipeline - 1 - numbers[0]
    steps = 1 if schedule.splits_backward else 2
    chunks = (len(numbers) - 1) * in_round + steps * later + 1
    chunks = min(chunks, most * len(numbers))
    rounds, left = divmod(chunks, in_round * len(numbers))
    waiting = [
        rounds * in_round + max(0, min(in_round, left - place * in_round))
        for place in range(len(numbers))
    ]
    waiting[-1] += numbers[0] if schedule.splits_backward else 0
    return [min(most, number) for number in waiting]
