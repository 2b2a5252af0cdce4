"""What one rank of a training job holds in memory, predicted from what a single process would.

A rank has its part of the parameters and of the optimizer's state. Where models are sharded, it
gathers what it computes with: all that is outside of blocks, from the first use to the last, and
blocks one after the other (two are there at once, while one takes over from the next) or, if they
stay until the backward pass, all of them. Gradients are whole until they are reduced, when a copy
of them is sent. From the second micro-batch of a step on, those of the ones before it are there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from flopwatch.jobs.activation_memory import footprint_of
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.step_flops import count_parameters
from flopwatch.jobs.step_memory import DTYPE_BYTES, MOMENTS, Footprint, Moment, Plan
from flopwatch.jobs.variants import PRECISIONS, Precision, Sharding

AT_ONCE = 2
"""Blocks that are gathered at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Parameters, by where they are."""

    block: int
    rest: int
    """Outside of blocks."""
    layers: int

    @property
    def total(self) -> int:
        return self.layers * self.block + self.rest


class Layout(NamedTuple):
    stay: bool
    """Whether blocks stay gathered until the backward pass."""
    accumulates: bool


def estimate_rank(
    shape: Shape, plan: Plan, sharding: Sharding, shards: int, accumulation: int
) -> dict[str, int]:
    """By part; `plan` is of one micro-batch, and parameters are divided into so many `shards`."""
    if sharding in ("plain", "ddp"):
        return _estimate_whole(footprint_of(shape, plan), sharding, accumulation)
    # Gathered in 16 bits under autocast, so that what is computed from them is too.
    footprint = footprint_of(shape, replace(plan, precision="bf16") if plan.is_autocast else plan)
    layout = Layout(stay=sharding == "grad-op-shard", accumulates=accumulation > 1)
    return _estimate_shards(footprint, count_weights(shape), plan, shards, layout)


def count_weights(shape: Shape) -> Weights:
    block = count_parameters(replace(shape, layers=2)) - count_parameters(replace(shape, layers=1))
    total = count_parameters(shape)
    return Weights(block=block, rest=total - shape.layers * block, layers=shape.layers)


def _estimate_whole(footprint: Footprint, sharding: Sharding, accumulation: int) -> dict[str, int]:
    """Gradients of earlier micro-batches stay; DDP has its buckets for good besides, in which the
    gradients of the last one arise."""
    if sharding == "plain" and accumulation == 1:
        return footprint.parts()
    moment = max(
        footprint.forward,
        footprint.backward,
        key=lambda moment: moment.activation_bytes + moment.temporary_bytes,
    )
    return {
        **footprint.parts(),
        "activations": moment.activation_bytes,
        "gradients": footprint.gradient_bytes if accumulation > 1 else 0,
        "temporary": moment.temporary_bytes,
        "buckets": footprint.gradient_bytes if sharding == "ddp" else 0,
    }


def _estimate_shards(
    footprint: Footprint, weights: Weights, plan: Plan, shards: int, layout: Layout
) -> dict[str, int]:
    precision = PRECISIONS[plan.precision]
    own_bytes = weights.total * DTYPE_BYTES[precision.dtype] // shards
    held = {
        "parameters": own_bytes,
        "buffers": footprint.buffer_bytes,
        "optimizer state": MOMENTS[plan.optimizer] * own_bytes,
    }
    moments = [
        _divide(moment, weights, precision, own_bytes, layout)
        for moment in (footprint.forward, footprint.backward)
    ]
    most: dict[str, int] = max(moments, key=lambda parts: sum(parts.values()))
    return {**held, **most}


def _divide(
    moment: Moment, weights: Weights, precision: Precision, own_bytes: int, layout: Layout
) -> dict[str, int]:
    """What is there at a moment at which a single process would hold that."""
    product_bytes, element_bytes = (
        DTYPE_BYTES[dtype] for dtype in (precision.product_dtype, precision.dtype)
    )
    blocks = weights.layers if layout.stay else min(AT_ONCE, weights.layers)
    whole_bytes = min(moment.gradient_bytes, (weights.rest + weights.block) * product_bytes)
    sent_bytes = max(weights.rest, weights.block) * element_bytes if whole_bytes else 0
    done = moment.gradient_bytes / (weights.total * product_bytes)
    return {
        "activations": moment.activation_bytes,
        "gradients": own_bytes if layout.accumulates else round(done * own_bytes),
        "temporary": moment.temporary_bytes,
        "gathered parameters": (weights.rest + blocks * weights.block) * product_bytes,
        "whole gradients": whole_bytes + sent_bytes,
    }
