"""DYAD, structured-sparse linear layers, against dense: alone, in models, and in loss.

Three levels:

    layer     one linear layer, forward and backward; the FLOP limit is 2 at 4 blocks, 4 at 8
    model     a whole training step with the feed-forward layers swapped, and those layers timed
              inside the running model by hooks
    quality   (on request) a small language model trained on bytes with each variant: what the
              speed costs in loss; here int8 layers take part, whose speed the suite switchback
              measures

All variants of a group have the same dtype and autocast state. The published comparison has not:
its dense layers ran in float32 and its sparse ones under float16 autocast. ``autocast=published``
(on request) is that mixture, and is marked as not comparable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import flopwatch
from flopwatch.devices.kinds import Devices
from flopwatch.errors import LayerError, UsageError
from flopwatch.jobs.model_shapes import SHAPES, Shape, find_shape, make_opt
from flopwatch.jobs.precision import name_precision
from flopwatch.jobs.training_job import LinearLayer, TrainingJob
from flopwatch.layers import registry
from flopwatch.models.job_estimates import count_swapped_flops
from flopwatch.suites.grids import require_counts

if TYPE_CHECKING:
    from flopwatch.layers.layer_workload import Setting

FAST = ["dense", "dyad:auto:4", "dyad:auto:8"]
FORMS = ["dyad:it:4:cat", "dyad:it:8:cat", "dyad:it:4:published", "dyad:it:8:published"]
DYADS = [*FAST, "dyad:it:4", "dyad:it:8", "dyad:ot:4", "dyad:ot:8", "dyad:dt:4", *FORMS]
INT8 = ["switchback:rowwise", "switchback:global", "llm-int8"]
VARIANTS = [*DYADS, *INT8]

Grid = dict[str, list[Any]]
PRECISION: Grid = {"dtype": ["float32", "bfloat16"], "autocast": ["off", "bfloat16", "published"]}
LAYER: Grid = {
    "level": ["layer"],
    "tokens": [512, 4096],
    "shape": [(768, 3072), (3072, 768), (1024, 4096), (4096, 1024), (2048, 8192), (8192, 2048)],
    **PRECISION,
    "variant": DYADS,
}
MODEL: Grid = {
    "level": ["model"],
    "model": [name for name in SHAPES if name.startswith(("opt", "pythia"))],
    "micro_batch": [1, 4, 32],
    "seq_len": [128],
    **PRECISION,
    "variant": DYADS,
}
QUALITY: Grid = {
    "level": ["quality"],
    "hidden_size": [256],
    "train_tokens": [1_000_000],
    "dtype": ["float32"],
    "autocast": ["off"],
    "variant": [*FAST, "dyad:it:4", *INT8],
}
QUALITY_SEQUENCES, QUALITY_TOKENS = 16, 128
"""Of a step that trains the small model."""
ON_ACCELERATORS: tuple[Grid, Grid] = (
    {
        **LAYER,
        "tokens": [4096, 16384],
        "shape": [*LAYER["shape"], (4096, 16384), (16384, 4096)],
    },
    {**MODEL, "micro_batch": [32, 4]},
)


def list_axes(devices: Devices) -> list[Grid]:
    layer, model = (LAYER, MODEL) if devices.are_host else ON_ACCELERATORS
    return [layer, model, QUALITY]


def list_quick(devices: Devices) -> list[Grid]:
    layer, model, quality = list_axes(devices)
    alike: Grid = {"dtype": [devices.kind.usual_dtype], "autocast": ["off"]}
    tokens, shape, name = 16384, (2048, 8192), "opt-125m"
    if devices.are_host:
        tokens, shape, name = 512, (768, 3072), "opt-6l-768"
    forms = [*FAST, "dyad:it:4:published"]
    one = {"model": [name], "micro_batch": model["micro_batch"][:1]}
    return [
        {**layer, **alike, "tokens": [tokens], "shape": [shape, shape[::-1]], "variant": forms},
        {**model, **alike, **one, "variant": FAST},
        {**quality, "train_tokens": [100_000], "variant": FAST},
    ]


def ask_for_others(devices: Devices) -> Grid:
    """Many CPUs emulate short types, at a hundredth of the speed. The published micro-batch, 32, is
    minutes for a step on a small CPU."""
    return {
        "level": ["quality"],
        "dtype": ["bfloat16" if devices.are_host else "float32"],
        "autocast": ["bfloat16", "published"],
        "micro_batch": [32 if devices.are_host else 4],
    }


def is_sensible(case: flopwatch.Case) -> bool:
    """Autocast does nothing to a model that is short already."""
    return bool(case.autocast == "off" or case.dtype == "float32")


def find_tolerance(case: flopwatch.Case) -> float:
    level = "layer" if case.level == "layer" else "model"
    return registry.find_tolerance(case.variant, level, find_cast(case) or case.dtype)


COUNTS = {
    "tokens": 1, "shape": 2, "micro_batch": 1, "seq_len": 1, "hidden_size": 1, "train_tokens": 1
}  # fmt: skip
"""Axes of whole numbers, and how many make a value."""


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis == "variant":
        registry.parse(value)
    elif axis == "model":
        find_shape(value)
    elif axis not in COUNTS:
        raise UsageError(f"the suite dyad accepts only its own values of {axis!r}; use --filter")
    else:
        require_counts(axis, value, COUNTS[axis])
        if axis == "hidden_size" and value % 64:
            raise UsageError(f"hidden_size is {value}; its heads are 64 wide: take a multiple")


suite = flopwatch.Suite(
    "dyad",
    axes=list_axes,
    variants=VARIANTS,
    layout="dyad",
    quick=list_quick,
    on_request=ask_for_others,
    where=is_sensible,
    tolerance=find_tolerance,
    accepts=accept,
)


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    try:
        return make_workload(case)
    except LayerError as error:  # blocks that do not divide, say
        raise flopwatch.Unsupported(str(error)) from None


def make_workload(case: flopwatch.Case) -> flopwatch.Workload:
    if case.level == "layer":
        from flopwatch.layers import layer_workload

        return layer_workload.make_workload(
            case.variant, case.tokens, case.shape, make_setting(case)
        )
    from flopwatch.models import step_workload

    job = make_training_job(case)
    made = step_workload.make_workload(job, case.device, counts_tokens=False)
    return made if case.level == "model" else add_study(case, made)


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload:
    """The same function, with dense weights."""
    if case.level == "layer":
        from flopwatch.layers.layer_workload import make_reference

        return make_reference(case.variant, case.tokens, case.shape, make_setting(case))
    from flopwatch.models import step_workload

    return step_workload.make_reference(make_training_job(case), case.device)


@suite.flops
def count_flops(case: flopwatch.Case) -> dict[str, dict[str, float]]:
    dtype = find_cast(case) or case.dtype
    if case.level == "layer":
        inputs, outputs = case.shape
        return registry.count_flops_by_dtype(
            case.variant, case.tokens, inputs, outputs, dtype, case.device
        )
    return count_swapped_flops(make_training_job(case), case.device)


@suite.job
def make_job(case: flopwatch.Case) -> TrainingJob | LinearLayer:
    if case.level != "layer":
        return make_training_job(case)
    inputs, outputs = case.shape
    return LinearLayer(
        tokens=case.tokens, inputs=inputs, outputs=outputs, dtype=case.dtype, linear=case.variant
    )


def make_training_job(case: flopwatch.Case) -> TrainingJob:
    return TrainingJob(
        find_model(case),
        case.seq_len if case.level == "model" else QUALITY_TOKENS,
        micro_batch=case.micro_batch if case.level == "model" else QUALITY_SEQUENCES,
        precision=name_precision(case.dtype, find_cast(case)),
        linear=case.variant,
    )


def find_cast(case: flopwatch.Case) -> str | None:
    """The dtype that autocast computes in, if it is on."""
    casts = {
        "off": None,
        "bfloat16": "bfloat16",
        "published": None if case.variant == "dense" else "float16",
    }
    return casts[case.autocast]


def make_setting(case: flopwatch.Case) -> Setting:
    from flopwatch.layers.layer_workload import Setting

    return Setting(device=case.device, dtype=case.dtype, autocast=find_cast(case))


def find_model(case: flopwatch.Case) -> str | Shape:
    if case.level == "model":
        name: str = case.model
        return name
    # Four layers of OPT, on bytes.
    return replace(make_opt(case.hidden_size, layers=4), vocabulary=256)


def add_study(case: flopwatch.Case, made: flopwatch.Workload) -> flopwatch.Workload:
    from flopwatch.models.byte_model import read_standard_library

    # Another Python has other sources: losses on them are not comparable.
    conditions = {**made.conditions, "text": read_standard_library().digest}
    return replace(made, conditions=conditions, curves=lambda: train(case))


def train(case: flopwatch.Case) -> Iterator[dict[str, float]]:
    """Train a fresh model on the standard library's sources."""
    import torch

    from flopwatch import layers
    from flopwatch.models.builder import build_from_transformers as build_model
    from flopwatch.models.byte_model import Schedule, read_standard_library, train

    schedule = Schedule(
        sequences=QUALITY_SEQUENCES, tokens=QUALITY_TOKENS, train_tokens=case.train_tokens
    )
    model = build_model(find_model(case), device=case.device, dtype=case.dtype)
    # Dense ones too: then all are initialised by the same rule, uniform within 1 / sqrt(inputs).
    layers.swap(model, case.variant, match="*.fc[12]")
    yield from train(model, read_standard_library(), schedule, seed=torch.initial_seed())
