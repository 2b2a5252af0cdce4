"""Training throughput of real jobs: steps of a model that ranks share, on fresh sequences.

A rank is a process, with a GPU or some cores of its own. Variants have the sharding, which is how
data-parallel ranks share the model: all of it on each of them (none, ddp) or parts of it (full,
zero1, zero2, hybrid); how ranks divide the model: its layers (tp2, tp2+sp for tensor and sequence
parallelism), its depth (pp2, pp2:interleaved for a pipeline and its schedule), sequences (cp2) or
experts (ep2); and words of the suite steps: ``--set variant=full,full+tp2,pp2:gpipe``. All are
measured side by side, train on the same sequences, and must find the same losses.

Ranks that divide a model compute the sequences of all of them: with ``tp2``, 4 ranks are 2
data-parallel ones, each of which has twice as many micro-batches.

A step is ``micro_batch`` sequences at a time, ``grad_accum`` times on every rank;
``--set global_batch=64`` asks for the sequences of a step instead, and ``--set micro_batch=auto``
for as many at a time as fit into memory. ``--grid mosaic`` is the published table of MosaicGPT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flopwatch
from flopwatch import env
from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.errors import UsageError
from flopwatch.jobs.combinations import require_divisible
from flopwatch.jobs.model_shapes import ARCHITECTURES, find_shape
from flopwatch.jobs.parallelism import SCHEDULES, Parallelism, find_schedule
from flopwatch.jobs.parallelism_words import FIELDS
from flopwatch.jobs.precision import TF32, require_built
from flopwatch.jobs.training_job import (
    OPTIMIZERS,
    SHARDING_WORDS,
    STEP_WORDS,
    TrainingJob,
    name_sharding,
    parse_variant,
)
from flopwatch.models import job_estimates
from flopwatch.suites.builtin.steps import (
    find_job_tolerance,
    require_architecture,
    require_pair,
    require_variant,
)
from flopwatch.suites.grids import AUTO, require_counts

Grid = dict[str, list[Any]]
SMALL = "decoder:hidden_size=256:layers=4"
USUAL = ["none", "ddp", "full"]
DIVIDING: Grid = {
    "tp": [1, 2],
    "pp": [1, 2],
    "cp": [1, 2],
    "ep": [1, 2],
    "sequence_parallel": [False, True],
    "virtual_stages": [1, 2],
    "schedule": list(SCHEDULES),
}
"""Axes of how ranks divide a model; usually it is the variant that says so."""
VARIANTS = [
    *SHARDING_WORDS,
    "tp2",
    "tp2+sp",
    "pp2",
    "full+recompute-full",
    "full+recompute-selective",
    "full+compiled",
]
TRAINED = ("fp32", TF32, "bf16-mixed", "amp_bf16", "bf16")
"""Precisions; fp16 would have its loss scaled up and down, which is not done here."""
JOBS: Grid = {
    "model": [SMALL, "small"],
    "seq_len": [128, 1024],
    "ranks": [1, 2],
    "micro_batch": [4, AUTO],
    "grad_accum": [1],
    "precision": ["fp32", "bf16-mixed"],
    "optimizer": list(OPTIMIZERS),
    "variant": USUAL,
}
KNOWN = {"precision": TRAINED, "optimizer": OPTIMIZERS, "schedule": tuple(SCHEDULES)}
"""Values of axes that only have these."""
TINY = "decoder:hidden_size=128:layers=2:vocabulary=1000"
LARGEST_MICRO_BATCH = 2**12

PUBLISHED = {
    "gpt-125m": (32, 8, "full"),
    "gpt-350m": (16, 16, "full"),
    "gpt-760m": (16, 16, "full"),
    "gpt-1b": (32, 8, "full+recompute-full"),
    "gpt-3b": (32, 8, "full+recompute-full"),
    "gpt-7b": (16, 16, "full+recompute-full"),
    "gpt-13b": (8, 32, "full+recompute-full"),
}
"""MosaicGPT on 8 A100 of 80 GB, 2048 tokens: micro-batch, grad_accum and variant of each."""


def divide_batch(jobs: Grid, devices: Devices) -> Grid:
    """The same, by the sequences of a step instead of the micro-batches of a rank: of two ranks, or
    of all devices."""
    named = {axis: values for axis, values in jobs.items() if axis != "grad_accum"}
    return {**named, "global_batch": [4 * max(2, devices.count)]}


def make_published(model: str) -> Grid:
    micro_batch, grad_accum, variant = PUBLISHED[model]
    return {
        "model": [model],
        "seq_len": [2048],
        "ranks": [8],
        "micro_batch": [micro_batch],
        "grad_accum": [grad_accum],
        "precision": ["amp_bf16"],
        "optimizer": ["adamw"],
        "variant": ["none", variant],
    }


def list_jobs(devices: Devices) -> Grid:
    """On accelerators, a rank alone and all that there are."""
    if devices.are_host:
        return JOBS
    more = [TF32] if devices.kind.has_tf32 else []
    return {**JOBS, "ranks": sorted({1, devices.count}), "precision": [*JOBS["precision"], *more]}


def list_axes(devices: Devices) -> list[Grid]:
    jobs = list_jobs(devices)
    return [jobs, divide_batch(jobs, devices)]


def list_quick(devices: Devices) -> list[Grid]:
    jobs: Grid = {**list_jobs(devices), "optimizer": ["adamw"]}
    jobs["precision"] = [devices.kind.usual_precision]
    if devices.are_host:
        small: Grid = {"model": [TINY], "seq_len": [64], "ranks": [2], "micro_batch": [2]}
        return [{**jobs, **small}]
    usual: Grid = {"model": ["small"], "seq_len": [1024], "micro_batch": [4]}
    return [{**jobs, **usual, "ranks": [devices.count]}]


def ask_for_others(devices: Devices) -> Grid:
    """What takes long on the device is measured where it is asked for."""
    on_host, usual = devices.are_host, devices.kind.usual_precision
    jobs, batches = list_axes(devices)
    return {
        "model": ["small" if on_host else SMALL],
        "seq_len": [1024 if on_host else 128],
        "precision": [name for name in jobs["precision"] if name != usual],
        "micro_batch": [AUTO],
        "global_batch": batches["global_batch"],
        "optimizer": ["adamw-unfused", "sgd"],
    }


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis == "variant":
        require_variant(value, [*SHARDING_WORDS, *STEP_WORDS])
        if name_sharding(value) is None:
            raise UsageError(
                f"variant {value!r} does not say how ranks share the model; add one of "
                f"{', '.join(SHARDING_WORDS)}, as in none+{value}, or a word such as tp2 or pp2"
            )
    elif axis == "model":
        require_architecture(find_shape(value))
    elif axis in KNOWN:
        if value not in KNOWN[axis]:
            raise UsageError(f"{axis} is {value}; choose one of {', '.join(KNOWN[axis])}")
    elif axis != "sequence_parallel" and (axis, value) != ("micro_batch", AUTO):
        require_counts(axis, value, 1)
        require_pair(axis, value)


def refuse(case: flopwatch.Case) -> None:
    """Refuse a global batch that ranks cannot share evenly, and what the device cannot compute."""
    require_built(case.precision, has_tf32=find_kind(case.device).has_tf32)
    try:
        require_divisible(make_variant(case))
    except UsageError as error:
        raise UsageError(f"{case.variant}: {error}") from None


def list_micro_batches(case: flopwatch.Case) -> list[int]:
    """Those to choose from, where it is to be as large as fits: any number, or those that divide
    the global batch."""
    batch = case.params.get("global_batch")
    if batch is None:
        return list(range(1, LARGEST_MICRO_BATCH + 1))
    share = batch // _divide(case).data
    most = min(share, LARGEST_MICRO_BATCH)
    return [number for number in range(1, most + 1) if share % number == 0]


def find_tolerance(case: flopwatch.Case) -> float:
    return find_job_tolerance(make_variant(case))


suite = flopwatch.Suite(
    "training",
    axes=list_axes,
    variants=VARIANTS,
    layout="mosaic",
    quick=list_quick,
    presets={"mosaic": [make_published(model) for model in PUBLISHED]},
    on_request=ask_for_others,
    optional=DIVIDING,
    tolerance=find_tolerance,
    accepts=accept,
    refuse=refuse,
    searches={"micro_batch": list_micro_batches},
    apart=True,
)


def make_variant(case: flopwatch.Case) -> TrainingJob:
    """With one sequence at a time where as many as fit are to be found. Micro-batches are counted
    for each rank: those that divide a model compute the ones of all of them."""
    micro_batch = 1 if case.micro_batch == AUTO else case.micro_batch
    split, batch = _divide(case), case.params.get("global_batch")
    if batch is None:
        grad_accum = case.grad_accum * split.model_ranks
    elif batch % (micro_batch * split.data) == 0:
        grad_accum = batch // (micro_batch * split.data)
    else:
        raise UsageError(
            f"global_batch={batch} is not a multiple of {split.data} data-parallel ranks times "
            f"micro_batch={case.micro_batch}; choose a multiple of {micro_batch * split.data}, or "
            "a micro_batch that divides each rank's share"
        )
    job = TrainingJob(
        case.model,
        case.seq_len,
        micro_batch=micro_batch,
        grad_accum=grad_accum,
        precision=case.precision,
        optimizer=case.optimizer,
        parallelism=split,
    )
    return parse_variant(job, case.variant)


def _divide(case: flopwatch.Case) -> Parallelism:
    """The ranks, as the axes and the variant divide them."""
    all_data = Parallelism(data=case.ranks, ranks_per_node=env.read_ranks_per_node(case.ranks))
    alone = TrainingJob(case.model, case.seq_len, grad_accum=1, parallelism=all_data)
    fields = {field: case.params.get(word, 1) for word, field in FIELDS.items()}
    stages = case.params.get("virtual_stages")
    schedule = case.params.get("schedule") or ("interleaved" if (stages or 1) > 1 else "1f1b")
    if fields["pipeline"] > 1:
        fields["schedule"] = schedule
        fields["virtual_stages"] = stages or SCHEDULES[find_schedule(schedule)].virtual_stages[0]
    fields["sequence"] = case.params.get("sequence_parallel", False) and fields["tensor"] > 1
    return parse_variant(alone.divide(**fields), case.variant).parallelism


@suite.job
def make_job(case: flopwatch.Case) -> TrainingJob | None:
    return None if case.micro_batch == AUTO else make_variant(case)


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    from flopwatch.models.training_loop import make_workload

    return make_workload(make_variant(case), case.device)


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload | None:
    """The ordinary loop on one rank; where a whole model does not fit next to the others, whatever
    the baseline gives."""
    from flopwatch.devices.base import open_backend
    from flopwatch.models.training_loop import make_reference

    undivided = {axis: value for axis, value in case.params.items() if axis not in DIVIDING}
    whole = replace(case, variant="none", params=undivided)
    needed_bytes = sum(estimate_memory(whole).values())
    free_bytes = open_backend(case.device).count_free_bytes()
    if free_bytes is not None and needed_bytes > free_bytes:
        return None
    return make_reference(make_variant(case), case.device)


@suite.flops
def count_flops(case: flopwatch.Case) -> dict[str, dict[str, float]]:
    """Of all ranks together."""
    job = make_job(case)
    return {} if job is None else job_estimates.count_flops(job, case.device)


@suite.memory
def estimate_memory(case: flopwatch.Case) -> dict[str, float]:
    """Of one rank; how much models of the library transformers keep is not asked here."""
    job = make_job(case)
    if job is None or job.shape.architecture not in ARCHITECTURES:
        return {}
    return job_estimates.estimate_memory(job, case.device)
