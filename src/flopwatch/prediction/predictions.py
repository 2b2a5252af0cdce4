"""A job predicted: how fast, by what parts, in how much memory, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from flopwatch.devices.specifications import Peak
from flopwatch.jobs.conventions import CONVENTIONS, Training
from flopwatch.jobs.utilisation import Utilisation, assess
from flopwatch.prediction.cost import ALIGNED, Cost, estimate_cost
from flopwatch.prediction.cost_job import Job
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.memory_need import Memory, estimate_memory, find_pressure
from flopwatch.prediction.software_stacks import Stack

CONVENTION = "exact"
WORTH_PADDING = 1.1
"""Times as long."""
PADDED = 64
"""Multiples of it are usual for vocabularies."""
MOST_RANKS = 128
"""Of the published jobs."""
FARTHEST = 4
"""Times as many are near enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    job: Job
    machine: Machine
    stack: Stack
    cost: Cost
    memory: Memory
    low: float
    """Tokens/s of all ranks: nine of ten measured jobs lie above this, or"""
    high: float
    """below this."""
    warnings: tuple[str, ...]
    """Why it may be further off than the interval says, and what could easily be better, as
    sentences."""

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks."""
        return self.job.step_tokens / self.cost.step_s

    @property
    def utilisation(self) -> Utilisation:
        peak = self.machine.peak_flops_per_s[self.job.arithmetic.products]
        training = Training(
            shape=self.job.shape, tokens=self.job.tokens, recompute=self.job.recompute
        )
        (found,) = assess(
            training,
            self.tokens_per_s,
            devices=self.job.ranks,
            peak=Peak(flops_per_s=peak, source=self.machine.sources[0]),
            conventions=[CONVENTIONS[CONVENTION]],
        )
        return found


def predict(job: Job, machine: Machine, stack: Stack) -> Prediction:
    """
    >>> from flopwatch.jobs.model_shapes import find_shape
    >>> from flopwatch.prediction.hardware import find_machine
    >>> from flopwatch.prediction.software_stacks import find_stack
    >>> job = Job(shape=find_shape("7b"), tokens=2048, micro_batch=4, ranks=8, recompute="full")
    >>> found = predict(job, find_machine("A100-80GB")[1], find_stack("mosaicgpt-2022"))
    >>> found.memory.fits, found.low < found.tokens_per_s < found.high
    (True, True)
    """
    memory = estimate_memory(job, machine, stack.family)
    cost = estimate_cost(job, machine, stack.parameters, find_pressure(memory))
    speed = job.step_tokens / cost.step_s
    unseen = _list_unseen(job, machine, stack)
    low, high = stack.find_interval(len(unseen))
    return Prediction(
        job=job,
        machine=machine,
        stack=stack,
        cost=cost,
        memory=memory,
        low=low * speed,
        high=high * speed,
        warnings=(*unseen, *_list_warnings(job, machine, memory), *_advise_padding(job, stack)),
    )


def _list_unseen(job: Job, machine: Machine, stack: Stack) -> list[str]:
    """In what respects no data are from such a job, as sentences."""
    unseen = []
    if not stack.covers(machine):
        unseen.append(
            f"no data of {stack.name} are from {machine.name}: it is predicted from its data sheet,"
            " with a wider interval"
        )
    if job.precision not in stack.precisions:
        unseen.append(
            f"no data are in {job.precision}: how near it comes to its peak is a guess, with a "
            "wider interval"
        )
    if not stack.is_here and job.ranks > FARTHEST * MOST_RANKS:
        unseen.append(
            f"no data are from more than {MOST_RANKS} devices: what latencies and slow ones cost "
            "among so many is left out, with a wider interval"
        )
    return unseen


def _list_warnings(job: Job, machine: Machine, memory: Memory) -> list[str]:
    warnings = []
    if job.shape.experts:
        warnings.append("how experts are shared among ranks, and their tokens sent, is left out")
    if memory.fits is None:
        warnings.append(f"how much memory {machine.name} has is not known")
    elif not memory.fits:
        warnings.append("it does not fit into memory: how fast it would be if it did")
    elif find_pressure(memory):
        warnings.append(
            "memory is nearly full: published jobs as near to the limit took up to 2.4 times as "
            "long where memory had to be given back and asked for again"
        )
    return warnings


def _advise_padding(job: Job, stack: Stack) -> list[str]:
    rows = job.shape.padded_vocabulary or job.shape.vocabulary
    if not rows % ALIGNED or stack.parameters.odd_product < WORTH_PADDING:
        return []
    padded = -(-rows // PADDED) * PADDED
    return [
        f"a vocabulary of {rows:,} is no multiple of {ALIGNED}: the head takes "
        f"{stack.parameters.odd_product:.1f} times as long as if it was padded, by "
        f":padded_vocabulary={padded} behind the model's name"
    ]
