"""SwitchBack, int8 linear layers for training, against dense: alone and in models.

Two levels:

    layer     one linear layer, forward and backward; and the published parts (parts:...),
              operations by themselves on tensors made beforehand, added up. What a layer takes
              beyond its parts lies between them.
    model     a whole training step, with the feed-forward layers swapped or all linear layers of
              the blocks, and those layers timed inside the running model by hooks

llm-int8 computes the weight's gradient in int8 too, which SwitchBack does not: it shows what that
restraint costs in time. On accelerators whose data sheets have float8, layers in float8 (fp8) stand
beside both; elsewhere they may be emulated, and are measured on request. ``--grid published`` has
the published shapes and batches, most of them too large for a CPU.

What int8 is compared with matters: float32 on a CPU and bfloat16 on a GPU, unless another dtype is
asked for. All variants of a group have the same.
"""

from __future__ import annotations

from typing import Any

import flopwatch
from flopwatch.devices.kinds import Devices
from flopwatch.errors import LayerError, UsageError
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.precision import name_precision
from flopwatch.jobs.training_job import LinearLayer, TrainingJob
from flopwatch.layers import registry
from flopwatch.models.job_estimates import count_swapped_flops
from flopwatch.records.published.published_switchback import (
    INT8_MATMULS,
    STANDARD_MATMULS,
    SUMS,
    WHOLES,
)
from flopwatch.suites.grids import require_counts

FLOAT8_VARIANTS = ["fp8:rowwise", "fp8:tensorwise"]
MODEL_VARIANTS = [
    *("dense", "switchback:rowwise", "switchback:global", "llm-int8"),
    *FLOAT8_VARIANTS,
]
VARIANTS = [
    *("dense", "switchback:rowwise", "switchback:global", "switchback:global:int8", "llm-int8"),
    *FLOAT8_VARIANTS,
    *SUMS,
]

Grid = dict[str, list[Any]]
DTYPES = ["float32", "bfloat16", "float16"]
LAYER: Grid = {
    "level": ["layer"],
    "tokens": [16, 64, 256, 1024, 4096],
    "shape": [(768, 3072), (3072, 768), (1024, 4096), (4096, 1024)],
    "dtype": DTYPES,
}
MODEL: Grid = {
    "level": ["model"],
    "model": ["opt-125m", "pythia-160m"],
    "micro_batch": [1, 4],
    "seq_len": [128],
    "swapped": ["feed-forward", "linear"],
    "dtype": DTYPES,
    "variant": MODEL_VARIANTS,
}
ON_ACCELERATORS: tuple[Grid, Grid] = (
    {
        **LAYER,
        "tokens": [1024, 4096, 16384],
        "shape": [(1024, 4096), (4096, 1024), (4096, 16384), (16384, 4096)],
    },
    {**MODEL, "micro_batch": [8, 32], "seq_len": [512]},
)
WIDENING = [
    *((1024, 4096), (1408, 6144), (1280, 5120), (1664, 8192), (2048, 8192), (4096, 16384)),
    *((8096, 32384), (1408, 5632), (1664, 6656)),
]
PUBLISHED: Grid = {
    **LAYER,
    "variant": [variant for variant in VARIANTS if variant not in FLOAT8_VARIANTS],
    "tokens": [2**power for power in range(10, 18)],
    "shape": [shape for pair in WIDENING for shape in (pair, pair[::-1])],
}


def list_axes(devices: Devices) -> list[Grid]:
    return [LAYER, MODEL] if devices.are_host else [*ON_ACCELERATORS]


def list_quick(devices: Devices) -> list[Grid]:
    layer, model = list_axes(devices)
    shape, sizes, name = (4096, 16384), [4096, 16384], "opt-125m"
    if devices.are_host:
        shape, sizes, name = (768, 3072), [64, 512], "opt-6l-768"
    one = {"micro_batch": model["micro_batch"][:1], "swapped": ["feed-forward"]}
    return [
        {**layer, "tokens": sizes, "shape": [shape]},
        {**layer, "tokens": sizes[-1:], "shape": [shape[::-1]]},
        {**model, **one, "model": [name]},
    ]


def ask_for_others(devices: Devices) -> Grid:
    """Only what the device is good at is measured unasked: a CPU may emulate short types, at a
    hundredth of the speed."""
    others: Grid = {"dtype": [dtype for dtype in DTYPES if dtype != devices.kind.usual_dtype]}
    return others if devices.compute_in("float8") else {**others, "variant": FLOAT8_VARIANTS}


def is_sensible(case: flopwatch.Case) -> bool:
    """A model has no parts."""
    return case.level == "layer" or case.variant not in SUMS


def find_tolerance(case: flopwatch.Case) -> float:
    if case.variant in SUMS:
        return registry.TOLERANCES[case.dtype]["parts"]
    return registry.find_tolerance(case.variant, case.level, case.dtype)


COUNTS = {"tokens": 1, "shape": 2, "micro_batch": 1, "seq_len": 1}
"""Axes of whole numbers, and how many make a value."""


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis == "variant":
        if value not in SUMS:
            require_layer(value)
    elif axis == "model":
        find_shape(value)
    elif axis in COUNTS:
        require_counts(axis, value, COUNTS[axis])
    else:
        raise UsageError(
            f"the suite switchback accepts only its own values of {axis!r}; use --filter"
        )


def require_layer(variant: str) -> None:
    try:
        registry.parse(variant)
    except LayerError as error:
        raise UsageError(f"{error}; lists of parts are {', '.join(SUMS)}") from None


suite = flopwatch.Suite(
    "switchback",
    axes=list_axes,
    variants=VARIANTS,
    quick=list_quick,
    presets={"published": PUBLISHED},
    on_request=ask_for_others,
    where=is_sensible,
    tolerance=find_tolerance,
    accepts=accept,
    parts=WHOLES,
    layout="switchback",
)


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    try:
        return make_workload(case)
    except LayerError as error:  # features that float8 cannot multiply, say
        raise flopwatch.Unsupported(str(error)) from None


def make_workload(case: flopwatch.Case) -> flopwatch.Workload:
    from flopwatch.layers import int8_parts, layer_workload
    from flopwatch.models import step_workload

    if case.level == "model":
        job = make_training_job(case)
        return step_workload.make_workload(job, case.device, counts_tokens=False)
    setting = layer_workload.Setting(device=case.device, dtype=case.dtype)
    if case.variant in SUMS:
        return int8_parts.make_workload(SUMS[case.variant], case.tokens, case.shape, setting)
    return layer_workload.make_workload(case.variant, case.tokens, case.shape, setting)


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload:
    """The plain formula of nn.Linear with the layer's weights; of parts, the plain arithmetic."""
    from flopwatch.layers import int8_parts, layer_workload
    from flopwatch.models import step_workload

    if case.level == "model":
        return step_workload.make_reference(make_training_job(case), case.device)
    setting = layer_workload.Setting(device=case.device, dtype=case.dtype)
    if case.variant in SUMS:
        return int8_parts.make_reference(SUMS[case.variant], case.tokens, case.shape, setting)
    return layer_workload.make_reference(case.variant, case.tokens, case.shape, setting)


@suite.job
def make_job(case: flopwatch.Case) -> TrainingJob | LinearLayer | None:
    if case.level == "model":
        return make_training_job(case)
    if case.variant in SUMS:
        return None
    inputs, outputs = case.shape
    return LinearLayer(
        tokens=case.tokens, inputs=inputs, outputs=outputs, dtype=case.dtype, linear=case.variant
    )


def make_training_job(case: flopwatch.Case) -> TrainingJob:
    return TrainingJob(
        case.model,
        case.seq_len,
        micro_batch=case.micro_batch,
        precision=name_precision(case.dtype),
        linear=case.variant,
        swapped=case.swapped,
    )


@suite.flops
def count_flops(case: flopwatch.Case) -> dict[str, dict[str, float]]:
    if case.level == "model":
        return count_swapped_flops(make_training_job(case), case.device)
    inputs, outputs = case.shape
    if case.variant not in SUMS:
        return registry.count_flops_by_dtype(
            case.variant, case.tokens, inputs, outputs, case.dtype, case.device
        )
    matmul = 2.0 * case.tokens * inputs * outputs
    dtypes = {**dict.fromkeys(STANDARD_MATMULS, case.dtype), **dict.fromkeys(INT8_MATMULS, "int8")}
    return {part: {dtypes[part]: matmul} for part in SUMS[case.variant] if part in dtypes}
