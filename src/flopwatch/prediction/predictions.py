"""A job predicted: how fast, by what parts, in how much memory, and how sure that is.

What a rank holds in memory has the parts that `flopwatch memory` predicts for our own transformer,
which are exact for it. Other stacks keep more or less of the same tensors: KEPT scales activations,
and TEMPORARY what is there for a moment only, most of it logits. They were chosen so that every
published job fits, since all of them ran; and for MosaicGPT, that those four jobs come close to the
limit that are only half as fast as their neighbours (760m on 40 GB): each of their micro-batches
takes about a second more than expected, whatever its sequence length, as it would if memory was
given back and asked for again. Beyond tensors, a process needs what its libraries hold.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from flopwatch.devices.kinds import is_host
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.model_shapes import has_usual_vocabulary
from flopwatch.jobs.parallelism import is_data_only
from flopwatch.jobs.precision import Peak
from flopwatch.jobs.rank_memory import GIB, Memory, estimate_rank_memory
from flopwatch.jobs.training_job import Printed, TrainingJob
from flopwatch.jobs.utilisation import Utilisation, compute_utilisations
from flopwatch.models.job_estimates import estimate_step
from flopwatch.prediction.cost import (
    Cost,
    Part,
    count_job_shards,
    estimate_cost,
    require_predictable,
)
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.intervals import (
    KNOWN_SHARE_SPREAD,
    UNKNOWN_SHARE_SPREAD,
    find_errors,
    find_spread,
)
from flopwatch.prediction.job_arrays import NO_HABITS, Habits, Placed, make_arrays
from flopwatch.prediction.layer_cost import ALIGNED
from flopwatch.prediction.software_stacks import TYPICAL, Stack, find_stack
from flopwatch.prediction.stage_memory import LIBRARIES_BYTES, estimate_stage_memory

KEPT = {"mosaicgpt-2022": 1.29, "llm-foundry": 0.78}
"""Of what our own transformer keeps for the backward pass."""
TEMPORARY = {"mosaicgpt-2022": 1.29, "llm-foundry": 0.75}
"""Of what it holds for a moment only."""
NEARLY_FULL = 0.95
"""Of the memory: from there on it may have to be given back and asked for again."""

CONVENTION = "exact"
WORTH_PADDING = 1.1
"""Times as long."""
PADDED = 64
"""Multiples of it are usual for vocabularies."""
PUBLISHED_ROWS = {"llm-foundry": {50_257: 50_368}, TYPICAL: {50_257: 50_304}}
"""What the published jobs of a family of stacks padded vocabularies to. Those of MosaicGPT did not,
and their heads took almost four times as long."""
FARTHEST = 4
"""Times as many are near enough."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Prediction(Printed):
    job: TrainingJob
    machine: Machine
    stack: Stack
    cost: Cost
    memory: Memory
    low: float
    """Tokens/s of all ranks: the 90 % interval is from this"""
    high: float
    """to this."""
    warnings: tuple[str, ...]
    """Why it may be further off than the interval says, and what could easily be better, as
    sentences."""

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks."""
        return self.job.tokens_per_step / self.cost.step_s

    @property
    def utilisation(self) -> Utilisation:
        peak = self.machine.peak_flops_per_s[self.job.arithmetic.matmul_dtype]
        (found,) = compute_utilisations(
            self.job,
            self.tokens_per_s,
            devices=self.job.ranks,
            peak=Peak(flops_per_s=peak, source=self.machine.sources[0]),
            conventions=[CONVENTIONS[CONVENTION]],
        )
        return found

    def to_dict(self) -> dict[str, Any]:
        memory, used = self.memory, self.utilisation
        return {
            "job": self.job.to_dict(),
            "device": self.machine.name,
            "ranks": self.job.ranks,
            "parameters": self.job.parameters,
            "stack": self.stack.name,
            "predicted_tokens_per_s": self.tokens_per_s,
            "low": self.low,
            "high": self.high,
            "step_s": self.cost.step_s,
            "mfu": used.mfu,
            "hfu": used.hfu,
            "convention": used.convention,
            "fits": memory.fits,
            "memory_bytes": dict(memory.parts),
            "available_bytes": memory.available_bytes,
            "parts": [
                {"name": p.name, "time_s": p.time_s, "ideal_s": p.ideal_s, "bound": p.bound}
                for p in self.list_parts()
            ],
            "warnings": list(self.warnings),
            "sources": list(self.machine.sources),
        }

    def list_parts(self) -> list[Part]:
        """Of the step's time, over both passes, the longest first."""
        return sorted(self.cost.by_name.values(), key=lambda part: -part.time_s)

    def __str__(self) -> str:
        mfu = f", MFU {100 * self.utilisation.mfu:.1f} %" if self.utilisation.mfu else ""
        memory = f"{self.memory.total_bytes / GIB:.1f} GiB on each rank"
        fits = {True: ", fits", False: ", does not fit", None: ""}[self.memory.fits]
        lines = [
            f"{self.tokens_per_s:,.0f} tokens/s (90 % interval {self.low:,.0f} to {self.high:,.0f})"
            f"{mfu}, step {self.cost.step_s:.3g} s, {memory}{fits}",
            f"{replace(self.job, hardware=None)}, on {self.job.ranks} x {self.machine.name}",
            *(
                f"  {part.name:<16} {part.time_s:8.3g} s "
                f"{100 * part.time_s / self.cost.step_s:5.1f} %"
                for part in self.list_parts()
            ),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from flopwatch.output.notebook import render_prediction

        return render_prediction(self)


def predict(job: TrainingJob, machine: Machine, stack: Stack) -> Prediction:
    """
    >>> from flopwatch.jobs.parallelism import Parallelism
    >>> from flopwatch.prediction.hardware import find_machine
    >>> from flopwatch.prediction.software_stacks import find_stack
    >>> split = Parallelism(data=8, sharding="full")
    >>> job = TrainingJob("7b", 2048, micro_batch=4, recompute="full", parallelism=split)
    >>> found = predict(job, find_machine("A100-80GB")[1], find_stack("mosaicgpt-2022"))
    >>> found.memory.fits, found.low < found.tokens_per_s < found.high
    (True, True)
    """
    require_predictable(job)
    memory = estimate_memory(job, machine, stack.family, stack.habits)
    pressed_gb = find_pressure(memory) if has_exact_memory(job) else 0.0
    cost = estimate_cost(job, machine, stack.parameters, pressed_gb, stack.habits)
    speed = job.tokens_per_step / cost.step_s
    unseen = _list_unseen(job, machine, stack)
    low, high = _find_interval(Placed(job, machine, stack.habits, pressed_gb), stack, unseen)
    return Prediction(
        job=job,
        machine=machine,
        stack=stack,
        cost=cost,
        memory=memory,
        low=low * speed,
        high=high * speed,
        warnings=(
            *unseen.values(),
            *_list_warnings(job, machine, memory),
            *_advise_padding(job, stack),
        ),
    )


def _find_interval(placed: Placed, stack: Stack, unseen: Collection[str]) -> tuple[float, float]:
    """Of measured over predicted tokens/s."""
    machine, dtype = placed.machine, placed.job.arithmetic.matmul_dtype
    share_spread = 0.0
    if "device" in unseen and not machine.is_measured:
        is_known = dtype in machine.sustained
        share_spread = KNOWN_SHARE_SPREAD if is_known else UNKNOWN_SHARE_SPREAD
    errors = find_errors(stack.errors, unseen, share_spread)
    spread = find_spread(placed, stack.parameters, errors)
    is_new = "kind" in unseen or "precision" in unseen
    return stack.find_interval(spread, find_stack(TYPICAL) if is_new else None)


def has_exact_memory(job: TrainingJob) -> bool:
    """Whether it is a job of our own transformer in data parallelism, of which every tensor is
    known."""
    shape = job.shape
    is_ours = shape.is_ours and not shape.experts and not shape.key_value_heads
    is_usual = job.offload == "none" and job.recompute_layers is None
    return is_ours and is_usual and shape.head_dim is None and is_data_only(job.parallelism)


def estimate_memory(
    job: TrainingJob, machine: Machine, family: str | None, habits: Habits = NO_HABITS
) -> Memory:
    """That each rank needs. `family` is that of the software stack; None: our own."""
    if not has_exact_memory(job):
        sizes = estimate_stage_memory(make_arrays([Placed(job, machine, habits)]))
        return Memory(
            job=job,
            parts={name: float(size[0]) for name, size in sizes.items() if size[0]},
            available_bytes=machine.memory_bytes,
        )
    shards = count_job_shards(job, machine)
    placed = replace(job, parallelism=replace(job.parallelism, ranks_per_node=shards))
    on_host = is_host(machine.device)
    exact = estimate_rank_memory(placed, on_host=on_host, estimate=estimate_step)
    scales = {
        "activations": KEPT.get(family or "", 1.0),
        "temporary": TEMPORARY.get(family or "", 1.0),
    }
    parts = {name: size * scales.get(name, 1.0) for name, size in exact.items()}
    if not on_host:
        parts["libraries"] = LIBRARIES_BYTES
    return Memory(
        job=job,
        parts={name: size for name, size in parts.items() if size},
        available_bytes=machine.memory_bytes,
    )


def find_pressure(memory: Memory) -> float:
    """GB that are held where that nearly fills the memory; 0 elsewhere."""
    available = memory.available_bytes
    if available is None or memory.total_bytes < NEARLY_FULL * available:
        return 0.0
    return memory.total_bytes / 1e9


def _list_unseen(job: TrainingJob, machine: Machine, stack: Stack) -> dict[str, str]:
    """In what respects no data are from such a job, as keys of UNSEEN with sentences."""
    unseen = {}
    if not stack.covers(machine):
        unseen["device"] = (
            f"no data of {stack.name} are from {machine.name}: it is predicted from its data sheet,"
            " with a wider interval"
        )
    if job.precision not in stack.precisions:
        unseen["precision"] = (
            f"no data are in {job.precision}: how near it comes to its peak is a guess, with a "
            "wider interval"
        )
    if not stack.is_here and job.ranks > FARTHEST * stack.most_ranks:
        unseen["ranks"] = (
            f"no data are from more than {stack.most_ranks:,} devices: what latencies and slow "
            "ones cost among so many is a guess, with a wider interval"
        )
    kinds = [name for name in KINDS if has_kind(job, name) and name not in stack.kinds]
    if kinds:
        unseen["kind"] = (
            f"no data of {stack.name} have {' and '.join(KINDS[name] for name in kinds)}: it is "
            "predicted from how it works, with a wider interval"
        )
    return unseen


KINDS = {
    "tensor": "tensor parallelism",
    "pipeline": "pipeline parallelism",
    "context": "context parallelism",
    "experts": "experts",
}
"""Of what a job may have, and data may not."""


def has_kind(job: TrainingJob, kind: str) -> bool:
    if kind == "experts":
        return job.shape.experts is not None
    return bool(getattr(job.parallelism, kind) > 1)


def _list_warnings(job: TrainingJob, machine: Machine, memory: Memory) -> list[str]:
    warnings = []
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


def pad_as_published(job: TrainingJob, stack: Stack) -> TrainingJob:
    """A named model with its vocabulary as in the jobs that the stack was fitted to, which the
    model's name then says; what the user has chosen stays.

    >>> from flopwatch.prediction.software_stacks import find_stack
    >>> pad_as_published(TrainingJob("7b", 2048), find_stack("llm-foundry-2023")).model
    '7b:padded_vocabulary=50368'
    """
    rows = PUBLISHED_ROWS.get(stack.family, {}).get(job.shape.vocabulary)
    if rows is None or not has_usual_vocabulary(job.model):
        return job
    return replace(job, model=f"{job.model}:padded_vocabulary={rows}")


def _advise_padding(job: TrainingJob, stack: Stack) -> list[str]:
    """Only where the user has chosen the vocabulary."""
    rows = job.shape.rows
    if has_usual_vocabulary(job.model):
        return []
    if not rows % ALIGNED or stack.parameters.odd_matmul < WORTH_PADDING:
        return []
    padded = -(-rows // PADDED) * PADDED
    return [
        f"a vocabulary of {rows:,} is no multiple of {ALIGNED}: the head takes "
        f"{stack.parameters.odd_matmul:.1f} times as long as if it was padded, by "
        f":padded_vocabulary={padded} behind the model's name"
    ]
