"""Whole models: forward, backward and optimizer of a training step, at many sizes.

The sizes are those of the language-modelling course CS336, of MosaicGPT, of OPT and Pythia, or any
other: ``--set model=small:layers=4`` or ``--set model=qwen2:hidden_size=512:layers=8``. Variants
compute the same step in other ways and are timed side by side: compiled, with plain attention, with
activation checkpointing, or with other linear layers
(``--set variant=eager,dyad:auto:4@feed-forward``). ``--grid cs336`` is the published table.
"""

from __future__ import annotations

from typing import Any

import flopwatch
from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.errors import LayerError, UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape, find_shape
from flopwatch.jobs.precision import BUILT, TF32, require_built
from flopwatch.jobs.training_job import (
    DENSE,
    OPTIMIZERS,
    STEP_WORDS,
    TrainingJob,
    name_sharding,
    parse_variant,
    read_variant,
)
from flopwatch.layers import registry
from flopwatch.models import job_estimates
from flopwatch.suites.grids import require_counts

VARIANTS = [
    *("eager", "compiled", "plain-attention", "recompute-full", "compiled+recompute-full"),
]
Grid = dict[str, list[Any]]
STEPS: Grid = {
    "model": ["small", "medium", "large", "xl", "2.7B"],
    "micro_batch": [4],
    "seq_len": [128, 256, 512, 1024],
    "precision": list(BUILT),
    "optimizer": list(OPTIMIZERS),
}
ON_ACCELERATORS: Grid = {
    **STEPS,
    "seq_len": [512, 1024, 2048],
    "precision": [name for name in BUILT if name != "fp32"],
}
PLAIN: Grid = {"seq_len": [128], "precision": ["fp32"], "optimizer": ["adamw"]}
CS336: Grid = {**STEPS, **PLAIN, "variant": ["eager"]}
LONGEST_CHECKED = 1024
"""Tokens up to which plain attention, which holds a score for every two of them, is computed only
to check the fused one."""


def list_axes(devices: Devices) -> Grid:
    """Nobody trains in fp32 on an accelerator, but ``--precision fp32`` measures it."""
    if devices.are_host:
        return STEPS
    more = [TF32] if devices.kind.has_tf32 else []
    return {**ON_ACCELERATORS, "precision": [*ON_ACCELERATORS["precision"], *more]}


def list_quick(devices: Devices) -> list[Grid]:
    if devices.are_host:
        model = "decoder:hidden_size=256:layers=4"
        return [{**STEPS, **PLAIN, "model": [model], "micro_batch": [1]}]
    usual: Grid = {"seq_len": [1024], "precision": [devices.kind.usual_precision]}
    return [{**ON_ACCELERATORS, **PLAIN, **usual, "model": ["small"]}]


def ask_for_others(devices: Devices) -> Grid:
    """What takes long on the device, or is unusual there, is measured where it is asked for."""
    axes, usual = list_axes(devices), devices.kind.usual_precision
    return {
        "optimizer": ["adamw-unfused", "sgd"],
        "variant": ["compiled+recompute-full"],
        "seq_len": [256, 512, 1024] if devices.are_host else [512, 2048],
        # A CPU may emulate short types, at a hundredth of the speed.
        "precision": [name for name in axes["precision"] if name != usual],
    }


def make_job(case: flopwatch.Case) -> TrainingJob:
    job = TrainingJob(
        case.model,
        case.seq_len,
        micro_batch=case.micro_batch,
        precision=case.precision,
        optimizer=case.optimizer,
    )
    return parse_variant(job, case.variant)


def find_tolerance(case: flopwatch.Case) -> float:
    job = make_job(case)
    return find_job_tolerance(job)


def find_job_tolerance(job: TrainingJob) -> float:
    # TF32 keeps as many bits of a number as float16.
    dtype = "float16" if job.precision == TF32 else job.arithmetic.matmul_dtype
    return registry.find_tolerance(job.linear, "model", dtype)


def refuse(case: flopwatch.Case) -> None:
    require_built(case.precision, has_tf32=find_kind(case.device).has_tf32)


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis == "variant":
        if name_sharding(value) is not None:
            raise UsageError(
                f"variant {value!r}: {name_sharding(value)!r} is how ranks share a model, which "
                "only the suite training measures; leave it out"
            )
        require_variant(value, [*STEP_WORDS])
    elif axis == "model":
        require_architecture(find_shape(value))
    elif axis in ("micro_batch", "seq_len"):
        require_counts(axis, value, 1)
        require_pair(axis, value)
    elif axis == "precision":
        require_built(value, has_tf32=True)  # where it must be is known of the whole case
    else:
        raise UsageError(f"the suite steps accepts only its own values of {axis!r}; use --filter")


def require_variant(text: str, words: list[str]) -> None:
    linear = read_variant(text).get("linear", DENSE)
    try:
        registry.parse(linear)
    except LayerError as error:
        raise UsageError(
            f"variant {text!r}: {linear!r} is none of {', '.join(words)}, nor a layer ({error})"
        ) from None


def require_pair(axis: str, value: int) -> None:
    if axis == "seq_len" and value < 2:
        raise UsageError("seq_len is 1; a sequence needs 2 tokens, to learn one from the other")


def require_architecture(shape: Shape) -> None:
    if shape.architecture not in ARCHITECTURES:
        from flopwatch.models.builder import explained, make_config

        with explained(shape):
            make_config(shape)


suite = flopwatch.Suite(
    "steps",
    axes=list_axes,
    variants=VARIANTS,
    layout="cs336",
    quick=list_quick,
    presets={
        "cs336": CS336,
        "cs336-2026": {**CS336, "model": ["small", "medium", "large", "xl-2026", "10B"]},
        "gpt": {
            **CS336,
            "model": ["gpt-125m", "gpt-350m", "gpt-760m", "gpt-1b", "gpt-3b", "gpt-7b"],
            "micro_batch": [1],
            "seq_len": [1024],
        },
    },
    on_request=ask_for_others,
    tolerance=find_tolerance,
    accepts=accept,
    refuse=refuse,
)
suite.job(make_job)


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    from flopwatch.models.step_workload import make_workload

    return make_workload(make_job(case), case.device)


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload | None:
    """The same step in plain formulas; of long sequences, whatever the baseline gives."""
    from flopwatch.models.step_workload import make_reference

    return make_reference(make_job(case), case.device) if case.seq_len <= LONGEST_CHECKED else None


@suite.flops
def count_flops(case: flopwatch.Case) -> dict[str, dict[str, float]]:
    return job_estimates.count_flops(make_job(case), case.device)


@suite.memory
def estimate_memory(case: flopwatch.Case) -> dict[str, float]:
    return job_estimates.estimate_memory(make_job(case), case.device)
