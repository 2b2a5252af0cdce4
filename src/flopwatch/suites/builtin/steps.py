"""Whole models: forward, backward and optimizer of a training step, at many sizes.

The sizes are those of the language-modelling course CS336, of MosaicGPT, of OPT and Pythia, or any
other: ``--set model=small:layers=4`` or ``--set model=qwen2:hidden_size=512:layers=8``. Variants
compute the same step in other ways and are timed side by side: compiled, with plain attention, with
blocks computed again in the backward pass, or with other linear layers
(``--set variant=eager,dyad:auto:4@feed-forward``). ``--grid cs336`` is the published table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flopwatch
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape, find_shape
from flopwatch.jobs.step_flops import count_mode_flops, spread_flops
from flopwatch.jobs.step_memory import Plan
from flopwatch.jobs.variants import OPTIMIZERS, PRECISIONS, parse_mode
from flopwatch.layers import registry
from flopwatch.settings import Device
from flopwatch.suites.axis_values import require_counts

if TYPE_CHECKING:
    from flopwatch.models.step_workload import Job

VARIANTS = ["eager", "compiled", "plain-attention", "checkpointed", "compiled+checkpointed"]
Grid = dict[str, list[Any]]
STEPS: Grid = {
    "model": ["small", "medium", "large", "xl", "2.7B"],
    "batch": [4],
    "context": [128, 256, 512, 1024],
    "precision": list(PRECISIONS),
    "optimizer": list(OPTIMIZERS),
}
PLAIN: Grid = {"context": [128], "precision": ["fp32"], "optimizer": ["adamw"]}
CS336: Grid = {**STEPS, **PLAIN, "variant": ["eager"]}
LONGEST_CHECKED = 1024
"""Tokens up to which plain attention, which holds a score for every two of them, is computed only
to check the fused one."""


def ask_for_others(device: Device) -> Grid:
    """What takes long on the device is measured where it is asked for."""
    unusual: Grid = {"optimizer": ["adamw-unfused", "sgd"], "variant": ["compiled+checkpointed"]}
    if device == "cuda":
        return {**unusual, "precision": ["fp16-mixed"]}
    # A CPU may emulate short types, at a hundredth of the speed.
    return {
        **unusual,
        "context": [256, 512, 1024],
        "precision": [name for name in PRECISIONS if name != "fp32"],
    }


def find_tolerance(case: flopwatch.Case) -> float:
    dtype = PRECISIONS[case.precision].product_dtype
    return registry.find_tolerance(parse_mode(case.variant).spec, "model", dtype)


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis == "variant":
        parse_mode(value)
    elif axis == "model":
        require_architecture(find_shape(value))
    elif axis in ("batch", "context"):
        require_counts(axis, value, 1)
        if axis == "context" and value < 2:
            raise UsageError("context is 1; a text needs 2 tokens, to learn one from the other")
    else:
        raise UsageError(f"the suite steps knows only its own values of {axis!r}; use --filter")


def require_architecture(shape: Shape) -> None:
    if shape.architecture not in ARCHITECTURES:
        from flopwatch.models.builder import explained, make_config

        with explained(shape):
            make_config(shape)


suite = flopwatch.Suite(
    "steps",
    axes=STEPS,
    variants=VARIANTS,
    layout="cs336",
    quick=[{**STEPS, **PLAIN, "model": ["decoder:hidden_size=256:layers=4"], "batch": [1]}],
    presets={
        "cs336": CS336,
        "cs336-2026": {**CS336, "model": ["small", "medium", "large", "xl-2026", "10B"]},
        "gpt": {
            **CS336,
            "model": ["gpt-125m", "gpt-350m", "gpt-760m", "gpt-1b", "gpt-3b", "gpt-7b"],
            "batch": [1],
            "context": [1024],
        },
    },
    on_request=ask_for_others,
    tolerance=find_tolerance,
    accepts=accept,
)


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    from flopwatch.models.step_workload import make_workload

    return make_workload(make_job(case), parse_mode(case.variant))


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload | None:
    """The same step in plain formulas; at long contexts, whatever the baseline gives."""
    from flopwatch.models.step_workload import make_reference

    if case.context > LONGEST_CHECKED:
        return None
    return make_reference(make_job(case), parse_mode(case.variant))


@suite.flops
def count_flops(case: flopwatch.Case) -> dict[str, dict[str, float]]:
    shape, mode = find_shape(case.model), parse_mode(case.variant)
    batch, precision = (case.batch, case.context), PRECISIONS[case.precision]
    if shape.architecture in ARCHITECTURES:
        return count_mode_flops(shape, mode, batch, precision, case.optimizer)
    if mode.spec != "dense" or mode.recompute != "none":
        return {}
    from flopwatch.models.survey import survey

    try:
        found = survey(shape.stretch(case.context), batch=case.batch, tokens=case.context)
    except UsageError:  # not every architecture runs on fake tensors
        return {}
    return spread_flops(found.forward_flops, found.parameters, precision, case.optimizer)


@suite.memory
def estimate_memory(case: flopwatch.Case) -> dict[str, float]:
    from flopwatch.jobs.activation_memory import footprint_of

    mode = parse_mode(case.variant)
    if mode.spec != "dense":  # how much other layers keep is theirs to tell
        return {}
    plan = Plan(
        batch=case.batch,
        context=case.context,
        precision=case.precision,
        optimizer=case.optimizer,
        attention=mode.attention,
        checkpointed=mode.checkpointed,
        selective=mode.recompute == "selective",
        device=case.device,
    )
    try:
        footprint = footprint_of(find_shape(case.model).stretch(case.context), plan)
    except UsageError:  # likewise
        return {}
    return {part: float(size) for part, size in footprint.parts().items()}


def make_job(case: flopwatch.Case) -> Job:
    from flopwatch.models.step_workload import Job

    shape = find_shape(case.model)
    return Job(
        shape=shape.stretch(case.context),
        batch=case.batch,
        context=case.context,
        precision=case.precision,
        optimizer=case.optimizer,
        device=case.device,
    )
