"""Training throughput of real jobs: steps of a model that ranks share, on fresh texts.

A rank is a process, with a GPU or some cores of its own. Variants say how ranks share the model:
whole on each of them (plain, ddp) or in parts (full-shard, grad-op-shard, hybrid-shard), with words
of the suite steps besides: ``--set variant=full-shard,full-shard+checkpointed``. All are measured
side by side, walk the same path, and must find the same losses.

A step is ``micro_batch`` texts at a time, ``accumulation`` times on every rank;
``--set global_batch=64`` asks for the texts of a step instead, and ``--set micro_batch=auto`` for
as many at a time as fit into memory. ``--grid mosaic`` is the published table of MosaicGPT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import flopwatch
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, find_shape
from flopwatch.jobs.step_flops import count_mode_flops, spread_flops
from flopwatch.jobs.step_memory import Plan
from flopwatch.jobs.variants import (
    OPTIMIZERS,
    OTHER_NAMES,
    PRECISIONS,
    SHARDINGS,
    count_on_machine,
    count_shards,
    parse_training_mode,
)
from flopwatch.layers import registry
from flopwatch.settings import Device
from flopwatch.suites.axis_values import require_counts
from flopwatch.suites.builtin.steps import require_architecture
from flopwatch.suites.suite import AUTO

if TYPE_CHECKING:
    from flopwatch.models.training_loop import TrainingJob

Grid = dict[str, list[Any]]
SMALL = "decoder:hidden_size=256:layers=4"
USUAL = ["plain", "ddp", "full-shard"]
VARIANTS = [
    *SHARDINGS,
    "full-shard+checkpointed",
    "full-shard+selective",
    "full-shard+compiled",
]
PLAIN: Grid = {"precision": ["fp32"], "optimizer": ["adamw"]}
TRAINED = ("fp32", "bf16-mixed", "amp_bf16", "bf16")
"""Precisions; fp16 would have its loss scaled up and down, which is not done here."""
JOBS: Grid = {
    "model": [SMALL, "small"],
    "context": [128, 1024],
    "ranks": [1, 2],
    "micro_batch": [4, AUTO],
    "accumulation": [1],
    "precision": ["fp32", "bf16-mixed"],
    "optimizer": list(OPTIMIZERS),
    "variant": USUAL,
}
TINY = "decoder:hidden_size=128:layers=2:vocabulary=1000"
LARGEST_MICRO_BATCH = 2**12

PUBLISHED = {
    "gpt-125m": (32, 8, "full-shard"),
    "gpt-350m": (16, 16, "full-shard"),
    "gpt-760m": (16, 16, "full-shard"),
    "gpt-1b": (32, 8, "full-shard+checkpointed"),
    "gpt-3b": (32, 8, "full-shard+checkpointed"),
    "gpt-7b": (16, 16, "full-shard+checkpointed"),
    "gpt-13b": (8, 32, "full-shard+checkpointed"),
}
"""MosaicGPT on 8 A100 of 80 GB, 2048 tokens: micro-batch, accumulation and variant of each."""


def divide_batch(jobs: Grid) -> Grid:
    """The same, by the texts of a step instead of how often gradients are added up."""
    named = {axis: values for axis, values in jobs.items() if axis != "accumulation"}
    return {**named, "global_batch": [8]}


def make_published(model: str) -> Grid:
    micro_batch, accumulation, variant = PUBLISHED[model]
    return {
        "model": [model],
        "context": [2048],
        "ranks": [8],
        "micro_batch": [micro_batch],
        "accumulation": [accumulation],
        "precision": ["amp_bf16"],
        "optimizer": ["adamw"],
        "variant": ["plain", variant],
    }


def ask_for_others(device: Device) -> Grid:
    """What takes long on the device is measured where it is asked for."""
    on_cpu = device == "cpu"
    return {
        "model": ["small" if on_cpu else SMALL],
        "context": [1024 if on_cpu else 128],
        "precision": ["bf16-mixed" if on_cpu else "fp32"],
        "micro_batch": [AUTO],
        "global_batch": [8],
        "optimizer": ["adamw-unfused", "sgd"],
    }


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis == "variant":
        parse_training_mode(value)
    elif axis == "model":
        require_architecture(find_shape(value))
    elif axis == "precision":
        if value not in TRAINED:
            raise UsageError(f"precision is {value}; choose one of {', '.join(TRAINED)}")
    elif axis == "optimizer":
        if value not in OPTIMIZERS:
            raise UsageError(f"optimizer is {value}; choose one of {', '.join(OPTIMIZERS)}")
    elif (axis, value) != ("micro_batch", AUTO):
        require_counts(axis, value, 1)
        if axis == "context" and value < 2:
            raise UsageError("context is 1; a text needs 2 tokens, to learn one from the other")


def refuse(case: flopwatch.Case) -> None:
    """Refuse a global batch that ranks cannot share evenly."""
    batch = case.params.get("global_batch")
    at_once = case.ranks * (1 if case.micro_batch == AUTO else case.micro_batch)
    if batch is not None and batch % at_once:
        raise UsageError(
            f"global_batch={batch} is not a multiple of ranks={case.ranks} times "
            f"micro_batch={case.micro_batch}; choose a multiple of {at_once}, or a micro_batch "
            "that divides each rank's share"
        )


def list_micro_batches(case: flopwatch.Case) -> list[int]:
    """Those to choose from, where it is to be as large as fits: any number, or those that divide
    the global batch."""
    batch = case.params.get("global_batch")
    if batch is None:
        return list(range(1, LARGEST_MICRO_BATCH + 1))
    share = batch // case.ranks
    most = min(share, LARGEST_MICRO_BATCH)
    return [number for number in range(1, most + 1) if share % number == 0]


def find_tolerance(case: flopwatch.Case) -> float:
    dtype = PRECISIONS[find_precision(case)].product_dtype
    return registry.find_tolerance(parse_training_mode(case.variant).spec, "model", dtype)


suite = flopwatch.Suite(
    "training",
    axes=[JOBS, divide_batch(JOBS)],
    variants=VARIANTS,
    layout="mosaic",
    quick=[
        {
            **JOBS,
            **PLAIN,
            "model": [TINY],
            "context": [64],
            "ranks": [2],
            "micro_batch": [2],
        }
    ],
    presets={"mosaic": [make_published(model) for model in PUBLISHED]},
    on_request=ask_for_others,
    tolerance=find_tolerance,
    accepts=accept,
    refuse=refuse,
    searches={"micro_batch": list_micro_batches},
    apart=True,
)


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    from flopwatch.models.training_loop import make_workload

    return make_workload(make_job(case), parse_training_mode(case.variant))


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload | None:
    """The ordinary loop on one rank; where a whole model does not fit beside the others, whatever
    the baseline gives."""
    from flopwatch.models.training_loop import count_free_bytes, make_reference

    needed_bytes = sum(estimate_memory(replace(case, variant="plain")).values())
    if needed_bytes > count_free_bytes(case.device):
        return None
    return make_reference(make_job(case), parse_training_mode(case.variant))


@suite.flops
def count_flops(case: flopwatch.Case) -> dict[str, dict[str, float]]:
    """Of all ranks together. Each has its own texts; the optimizer works on every copy of a
    parameter, of which there is one where it is sharded among all."""
    if case.micro_batch == AUTO:
        return {}
    accumulation, once = find_accumulation(case), count_micro_batch(case)
    flops = {phase: _scale(counts, case.ranks) for phase, counts in once.items()}
    if accumulation > 1 and flops:
        both = (flops["forward"], flops["backward"])
        dtypes = dict.fromkeys(dtype for counts in both for dtype in counts)
        flops["accumulation"] = {
            dtype: (accumulation - 1) * sum(counts.get(dtype, 0.0) for counts in both)
            for dtype in dtypes
        }
    if flops:
        sharding = parse_training_mode(case.variant).sharding or "plain"
        copies = case.ranks / _count_shards(sharding, case.ranks)
        flops["optimizer"] = _scale(once["optimizer"], copies)
    return flops


def count_micro_batch(case: flopwatch.Case) -> dict[str, dict[str, float]]:
    """Of one rank, with one micro-batch."""
    shape, mode = find_shape(case.model), parse_training_mode(case.variant)
    batch, precision = (case.micro_batch, case.context), PRECISIONS[find_precision(case)]
    if shape.architecture in ARCHITECTURES:
        return count_mode_flops(shape, mode, batch, precision, case.optimizer)
    if mode.spec != "dense" or mode.recompute != "none":
        return {}
    from flopwatch.models.survey import survey

    try:
        found = survey(shape.stretch(case.context), batch=case.micro_batch, tokens=case.context)
    except UsageError:  # not every architecture runs on fake tensors
        return {}
    return spread_flops(found.forward_flops, found.parameters, precision, case.optimizer)


@suite.memory
def estimate_memory(case: flopwatch.Case) -> dict[str, float]:
    """Of one rank."""
    from flopwatch.jobs.rank_memory import estimate_rank

    shape, mode = find_shape(case.model), parse_training_mode(case.variant)
    if mode.spec != "dense" or shape.architecture not in ARCHITECTURES or case.micro_batch == AUTO:
        return {}  # how much other layers and models keep is theirs to tell
    plan = Plan(
        batch=case.micro_batch,
        context=case.context,
        precision=find_precision(case),
        optimizer=case.optimizer,
        attention=mode.attention,
        checkpointed=mode.checkpointed,
        selective=mode.recompute == "selective",
        device=case.device,
    )
    sharding = mode.sharding or "plain"
    parts = estimate_rank(
        shape.stretch(case.context),
        plan,
        sharding,
        _count_shards(sharding, case.ranks),
        find_accumulation(case),
    )
    return {part: float(size) for part, size in parts.items()}


def make_job(case: flopwatch.Case) -> TrainingJob:
    from flopwatch.models.training_loop import TrainingJob

    return TrainingJob(
        shape=find_shape(case.model).stretch(case.context),
        context=case.context,
        ranks=case.ranks,
        micro_batch=case.micro_batch,
        accumulation=find_accumulation(case),
        precision=find_precision(case),
        optimizer=case.optimizer,
        device=case.device,
    )


def find_accumulation(case: flopwatch.Case) -> int:
    """Micro-batches of a rank in a step."""
    given: int | None = case.params.get("accumulation")
    if given is not None:
        return given
    number: int = case.global_batch // (case.micro_batch * case.ranks)
    return number


def find_precision(case: flopwatch.Case) -> str:
    """By the name that all else knows it by."""
    name: str = OTHER_NAMES.get(case.precision, case.precision)
    return name


def _count_shards(sharding: Any, ranks: int) -> int:
    try:
        return count_shards(sharding, ranks, count_on_machine(ranks))
    except Unsupported:  # which it will be found to be when it is built
        return ranks


def _scale(counts: dict[str, float], factor: float) -> dict[str, float]:
    return {dtype: factor * count for dtype, count in counts.items()}
