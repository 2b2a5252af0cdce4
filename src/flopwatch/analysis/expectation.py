"""What the cost model predicts for a record's shapes, on the machine that it was measured on.

Times are those of one rank; ranks work side by side. FLOPs are those of all ranks, counted as
records count them: scores in full, whatever the mask hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.hardware_limits import Limits
from flopwatch.analysis.record_job import Layer, Subject
from flopwatch.errors import FlopwatchError, Unsupported
from flopwatch.jobs.flops import ATTENTION, count_flops_by_part
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.cost import Cost, Part, estimate_cost
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.model_work import list_weights

PROJECTIONS = 2
"""The first of a block's layers belong to attention: queries, keys and values, and its output."""
PASSES = 3
"""Of a matmul: forward, and the gradients of its two operands."""
RECORD_NAMES = {"tf32": "float32"}
"""What records call it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Scores and values, both passes."""

    time_s: float
    ideal_s: float
    """At the peak, where the mask leaves something."""
    flops: float
    dtype: str
    projection_flops: float
    """Of the layers around it, which regions time with it."""
    projection_traffic_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    lost_share: float
    """Of the time that matmuls take at the peak: what they take longer at any shape."""
    traffic_s: float
    """Of matmuls: moving operands and results, as far as arithmetic does not hide it."""
    attention: Attention | None = None
    parts: Sequence[Part] = ()
    """Of a step: all that the cost model knows."""


def expect(subject: Subject | None, limits: Limits) -> Expectation | None:
    """None where the cost model knows nothing of it, or of the machine."""
    if subject is None or limits.machine is None:
        return None
    if isinstance(subject, Layer):
        return _expect_layer(subject, limits, limits.machine)
    # All ranks together where their links are known, or else one alone.
    for job in (subject, subject.on_ranks(1)):
        try:
            cost = estimate_cost(job, limits.machine, limits.parameters)
        except (FlopwatchError, Unsupported):  # no links, or no peak in its precision
            continue
        return _expect_step(subject, limits, limits.machine, cost)
    return None


def _expect_step(job: TrainingJob, limits: Limits, machine: Machine, cost: Cost) -> Expectation:
    lost_share = _find_lost_share(limits, machine, job.arithmetic.matmul_dtype)
    matmuls = [part for part in cost.parts if part.name in ("matmuls", "head")]
    slow_s = sum(part.time_s for part in matmuls)
    busy_s = sum(part.ideal_s for part in matmuls) * (1 + lost_share)
    return Expectation(
        lost_share=lost_share,
        traffic_s=max(0.0, slow_s - busy_s),
        attention=_expect_attention(job, limits, machine, cost),
        parts=cost.parts,
    )


def _expect_attention(job: TrainingJob, limits: Limits, machine: Machine, cost: Cost) -> Attention:
    found = [part for part in cost.parts if part.name == "attention"]
    parts = count_flops_by_part(job)
    batches = job.micro_batches
    around = [(each.inputs, each.outputs) for each in list_weights(job.shape)[:PROJECTIONS]]
    passes = PASSES + (1 if job.recompute == "full" else 0)
    traffic_s = passes * sum(
        _move_s(limits, machine, job.micro_batch_tokens, sizes, job.arithmetic.element_bytes)
        for sizes in around
    )
    name = job.arithmetic.activation_dtype
    return Attention(
        time_s=sum(part.time_s for part in found),
        ideal_s=sum(part.ideal_s for part in found),
        flops=batches * float(sum(parts[part].total for part in ATTENTION)),
        dtype=RECORD_NAMES.get(name, name),
        projection_flops=batches * float(parts["qkv"].total + parts["output"].total),
        projection_traffic_s=job.shape.layers * job.grad_accum * traffic_s,
    )


def _expect_layer(layer: Layer, limits: Limits, machine: Machine) -> Expectation:
    sizes = (layer.inputs, layer.outputs)
    moved_s = _move_s(
        limits, machine, layer.tokens, sizes, layer.element_bytes, density=layer.density
    )
    return Expectation(
        # Layers are in what the machine measured, or in what its maker promises of all dtypes.
        lost_share=_find_lost_share(limits, machine, next(iter(machine.peak_flops_per_s))),
        traffic_s=PASSES * moved_s,
    )


def _find_lost_share(limits: Limits, machine: Machine, dtype: str) -> float:
    peak, rate = machine.peak_flops_per_s.get(dtype), machine.find_rate(dtype)
    if not peak or not rate:
        return 0.0
    return max(0.0, peak / (rate * limits.parameters.matmul_efficiency) - 1)


def _move_s(
    limits: Limits,
    machine: Machine,
    rows: int,
    sizes: tuple[float, float],
    element_bytes: int,
    density: float = 1.0,
) -> float:
    """Of one matmul: what of its traffic shows."""
    inputs, outputs = sizes
    numbers = rows * inputs + density * inputs * outputs + rows * outputs
    reached = machine.bandwidth_bytes_per_s * limits.parameters.bandwidth_efficiency
    return limits.parameters.matmul_traffic * element_bytes * numbers / reached
