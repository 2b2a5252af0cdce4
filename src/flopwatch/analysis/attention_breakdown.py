"""Softmax beside the matmuls of attention: time, arithmetic, and arithmetic by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flopwatch.analysis.profile_breakdown import Entry, Kind, Part
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.training_job import TrainingJob

SOFTMAX_FLOPS = {"forward": 5, "backward": 4}
"""For one element. Forward: compare with the largest, subtract it, exponentiate, add up, divide;
an exponential counts as one, as it does elsewhere, though it costs more. Backward: multiply with
the gradient and add up, subtract the sum, multiply."""

PROJECTIONS = ("attention/qkv", "attention/output")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One kind of work in the attention of all layers, in one training step."""

    name: str
    forward_ns: float
    backward_ns: float
    forward_flops: float
    backward_flops: float


def compare_attention(entries: Sequence[Entry], job: TrainingJob) -> list[Work]:
    """Projections, the two products with queries, keys and values, and softmax; nothing where a
    fused kernel does the last two, and nobody can tell them apart."""
    inside = [entry for entry in entries if entry.region.partition("/")[0] == "attention"]
    if not any(entry.kind == "softmax" for entry in inside):
        return []
    # What attention counts does not depend on the architecture, which may be one without counts.
    shape = replace(job.shape, architecture="llama", activation=None)
    counts = count_flops_by_part(replace(job, model=shape))
    elements = job.micro_batch * shape.layers * shape.heads * job.seq_len**2
    projections = [entry for entry in inside if entry.region in PROJECTIONS]
    others = [entry for entry in inside if entry.region not in PROJECTIONS]
    return [
        _make_product("projections", projections, counts["qkv"].forward + counts["output"].forward),
        _make_product(
            "scores and values", others, counts["scores"].forward + counts["values"].forward
        ),
        Work(
            name="softmax",
            forward_ns=_sum_ns(inside, "softmax", "forward"),
            backward_ns=_sum_ns(inside, "softmax", "backward"),
            forward_flops=SOFTMAX_FLOPS["forward"] * elements,
            backward_flops=SOFTMAX_FLOPS["backward"] * elements,
        ),
    ]


def _make_product(name: str, entries: Sequence[Entry], flops: float) -> Work:
    return Work(
        name=name,
        forward_ns=_sum_ns(entries, "matmul", "forward"),
        backward_ns=_sum_ns(entries, "matmul", "backward"),
        forward_flops=flops,
        backward_flops=2 * flops,  # for each operand's gradient, a product as large
    )


def _sum_ns(entries: Sequence[Entry], kind: Kind, part: Part) -> float:
    return sum(entry.time_ns for entry in entries if (entry.kind, entry.part) == (kind, part))
