"""Fitting the cost model's parameters to measured steps.

Parameters are fitted as logarithms, in units of how far each may lie from what is expected of it
(`software_stacks.PRIORS`): what the data do not determine stays where it was expected. A residual
is the logarithm of predicted over measured time, in units of SCATTER, and large ones count in
proportion instead of by their square: a few jobs are slow for reasons of their own.

Several stacks are fitted together, with one value of what all of them share, and one of what the
stacks of a family share.

Three sets of steps are published, by one team on A100:

    mosaicgpt-2022         87 jobs of MosaicGPT, on memories of 40 and 80 GB
    llm-foundry-2023       55 jobs of its successor, on 40 GB
    llm-foundry-2023-late  42 more, on 80 GB

The two of llm-foundry are separate because the cost model separates them: jobs with full activation
checkpointing are 6 to 8 % faster on 80 GB than to be expected from those on 40 GB, by just what a
framework saves that stops recomputing before the last matmul of a block. Nobody has published
which versions they ran.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from flopwatch.jobs.model_shapes import SHAPES
from flopwatch.jobs.training_job import TrainingJob, read_job
from flopwatch.lazy import require
from flopwatch.prediction.cost import Phase, estimate_cost
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_rows import parse_rows
from flopwatch.prediction.predictions import estimate_memory, find_pressure
from flopwatch.prediction.software_stacks import HARDWARE, OWN, PRIORS, Parameters, Prior
from flopwatch.records import published

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

SCATTER = 0.03
"""How far predictions are off where nothing is wrong, relatively."""
WHOLE: tuple[Phase, ...] = ("forward", "backward", "optimizer")
OLD, EARLY, LATE = "mosaicgpt-2022", "llm-foundry-2023", "llm-foundry-2023-late"
FAMILIES = {EARLY: "llm-foundry", LATE: "llm-foundry"}
STACK_OF_DEVICE = {"a100_40gb": EARLY, "a100_80gb": LATE}
"""Of the rows of llm-foundry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    job: TrainingJob
    machine: Machine
    """That each of its ranks has."""
    stack: str
    time_s: float
    """Of all `phases` together."""
    phases: tuple[Phase, ...] = WHOLE
    pressed_gb: float = 0.0
    """What it holds, where that nearly fills the memory."""

    @property
    def size(self) -> str:
        """What the model is called, or how wide it is: what a fit may be asked to do without."""
        return SIZES.get(self.job.shape.hidden_size, str(self.job.shape.hidden_size))


SIZES = {
    shape.hidden_size: name.removeprefix("gpt-")
    for name, shape in SHAPES.items()
    if name.startswith("gpt-")
}


@cache
def load_published() -> tuple[Observation, ...]:
    """All 184."""
    steps: list[tuple[TrainingJob, str, str, float]] = []
    for record in published.load("mosaic"):
        job = read_job(record.job or {})
        # A published model has a learned position for each token of its sequences, and no more.
        job = replace(job, model=replace(job.shape, positions=job.seq_len))
        device = record.environment["torch"]["gpu"]["name"]
        steps.append((job, device, OLD, record.samples_ns["step"][0] / 1e9))
    text = (resources.files(__package__) / "data" / "foundry.csv").read_text(encoding="utf-8")
    for row in parse_rows(text, "foundry.csv"):
        assert row.tokens_per_s is not None
        time_s = row.job.tokens_per_step / row.tokens_per_s
        steps.append((row.job, row.device, STACK_OF_DEVICE[row.device], time_s))
    machines = {device: find_machine(device)[1] for _, device, _, _ in steps}
    return tuple(
        Observation(
            job=job,
            machine=machines[device],
            stack=stack,
            time_s=time_s,
            pressed_gb=find_pressure(estimate_memory(job, machines[device], find_family(stack))),
        )
        for job, device, stack, time_s in steps
    )


def find_family(stack: str) -> str:
    return FAMILIES.get(stack, stack)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """One number to be found: a parameter that some stacks have in common."""

    name: str
    stacks: tuple[str, ...]
    prior: Prior


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    unknown: Unknown
    value: float
    error: float
    """One standard deviation of the logarithm."""

    @property
    def determined(self) -> float:
        """How much of what was uncertain the data have settled: 0 nothing, 1 all."""
        return max(0.0, 1 - self.error / self.unknown.prior.spread)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    parameters: Mapping[str, Parameters]
    """By stack."""
    found: tuple[Found, ...]


def fit(
    observations: Sequence[Observation],
    *,
    priors: Mapping[str, Prior] = PRIORS,
    free: Sequence[str] = tuple(PRIORS),
) -> Fit:
    """`free` are the parameters to be fitted; the others are as expected."""
    require("scipy")
    import numpy as np
    from scipy.optimize import least_squares

    stacks = list(dict.fromkeys(each.stack for each in observations))
    unknowns = [
        Unknown(name=name, stacks=group, prior=priors[name])
        for name in free
        for group in _group(stacks, name)
    ]

    def measure(point: Array) -> Array:
        parameters = _unpack(point, unknowns, stacks, priors)
        residuals = [
            math.log(predict_s(each, parameters[each.stack]) / each.time_s) / SCATTER
            for each in observations
        ]
        return np.array([*map(soften, residuals), *point])

    solved = least_squares(measure, np.zeros(len(unknowns)), x_scale="jac")
    # Each prior is a row of the Jacobian, so that no spread is more than 1, the prior's own.
    covariance = np.linalg.inv(solved.jac.T @ solved.jac)
    spreads = [math.sqrt(max(float(variance), 0.0)) for variance in np.diag(covariance)]
    found = tuple(
        Found(
            unknown=unknown,
            value=unknown.prior.expected * math.exp(unknown.prior.spread * x),
            error=unknown.prior.spread * spread,
        )
        for unknown, x, spread in zip(unknowns, solved.x, spreads, strict=True)
    )
    return Fit(parameters=_unpack(solved.x, unknowns, stacks, priors), found=found)


def _group(stacks: Sequence[str], name: str) -> list[tuple[str, ...]]:
    """Stacks that have one value of a parameter."""
    groups: dict[str, list[str]] = {}
    for stack in stacks:
        own = stack if name in OWN else find_family(stack)
        groups.setdefault("" if name in HARDWARE else own, []).append(stack)
    return [tuple(group) for group in groups.values()]


def _unpack(
    point: Array, unknowns: Sequence[Unknown], stacks: Sequence[str], priors: Mapping[str, Prior]
) -> dict[str, Parameters]:
    values = {stack: {name: prior.expected for name, prior in priors.items()} for stack in stacks}
    for unknown, x in zip(unknowns, point, strict=True):
        value = unknown.prior.expected * math.exp(unknown.prior.spread * float(x))
        for stack in unknown.stacks:
            values[stack][unknown.name] = value
    return {stack: Parameters(**own) for stack, own in values.items()}


def predict_s(observation: Observation, parameters: Parameters) -> float:
    """What the model says that was measured."""
    cost = estimate_cost(observation.job, observation.machine, parameters, observation.pressed_gb)
    return cost.sum_phase(*observation.phases)


def soften(residual: float) -> float:
    """Its square is that of small residuals, and grows with the magnitude of large ones."""
    return math.copysign(math.sqrt(2 * (math.sqrt(1 + residual**2) - 1)), residual)
