"""Fitting the cost model's parameters to measured steps.

Parameters are fitted as logarithms (shares as those of their odds), in units of how far each may
lie from what is expected of it (`software_stacks.PRIORS`): what the data do not determine stays
where it was expected. A residual is the logarithm of predicted over measured time, in units of
SCATTER, and large ones count in proportion instead of by their square: a few jobs are slow for
reasons of their own. No table counts more than MOST_ROWS rows.

Stacks are fitted together. A parameter of HARDWARE has one value for all of them; any other has a
common value, and each family of stacks differs from that by a little. The common values are those
of a stack that no data are from: `typical`.

Published steps:

    mosaicgpt-2022             87 jobs of MosaicGPT, on A100 of 40 and 80 GB
    llm-foundry-2023           55 jobs of its successor, on 40 GB
    llm-foundry-2023-late      42 more, on 80 GB
    megatron-deepspeed-2023    1,010 jobs on 2 to 512 A100: github VIA-Research/vTrain, MIT
    megatron-deepspeed-2022    81 jobs on 8 to 384 A100: the search before BLOOM, github
                               bigscience-workshop/bigscience, chronicles-prequel.md, Apache 2.0
    megatron-deepspeed-2021    15 jobs on V100: the same, gpt2.md and tr3m-1B3.md
    deepspeed-zero3-2021       43 jobs of ZeRO-3 on V100 and A100: the same, and Narayanan et al.
                               2021
    megatron-lm-2021           17 jobs on 8 to 3,072 A100: Narayanan et al. 2021 with the authors'
                               run_table_1.sh, Korthikanti et al. 2022 with configurations of github
                               calculon-ai/calculon, Apache 2.0
    internevo-2024             33 jobs on 8 to 1,024 A100: github InternLM/InternEvo, Apache 2.0

The two of llm-foundry are separate because the cost model separates them: jobs with full activation
checkpointing are 6 to 8 % faster on 80 GB than to be expected from those on 40 GB, by just what a
framework saves that stops recomputing before the last matmul of a block. Nobody has published
which versions they ran.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

from flopwatch.jobs.model_shapes import SHAPES
from flopwatch.jobs.training_job import TrainingJob, read_job
from flopwatch.lazy import require
from flopwatch.prediction.cost import Phase, list_parts
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_arrays import NO_HABITS, JobArrays, Placed, make_arrays
from flopwatch.prediction.job_rows import parse_rows
from flopwatch.prediction.predictions import estimate_memory, find_pressure
from flopwatch.prediction.row_hardware import find_row_machine
from flopwatch.prediction.software_stacks import (
    EARLY,
    FAMILIES,
    HABITS,
    HARDWARE,
    LATE,
    OLD,
    OWN,
    PRIORS,
    SHARDED,
    Parameters,
    Prior,
    find_origin,
)
from flopwatch.records import published

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

SCATTER = 0.03
"""How far predictions are off where nothing is wrong, relatively."""
MOST_ROWS = 100
"""Of a table: more of them count as much as so many."""
DOUBTFUL = 0.25
"""What a row counts that its source calls uncertain."""
DIFFERENCE = 0.6
"""How far a stack's parameter may lie from the common one, in units of how far that may lie from
what is expected; 1 among stacks of data parallelism alone."""
MOST_ROUNDS = 20
"""Of a fit: further ones change next to nothing."""
NUDGE = 1e-4
"""Of a parameter, to see what it does."""
WHOLE: tuple[Phase, ...] = ("forward", "backward", "optimizer")
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
    source: str = ""
    """The table that it is from."""
    is_doubtful: bool = False

    @property
    def size(self) -> str:
        """What the model is called, or how wide it is: what a fit may be asked to do without."""
        return SIZES.get(self.job.shape.hidden_size, str(self.job.shape.hidden_size))

    @property
    def placed(self) -> Placed:
        return Placed(
            self.job, self.machine, HABITS.get(self.stack, NO_HABITS), self.pressed_gb
        )  # fmt: skip


SIZES = {
    shape.hidden_size: name.removeprefix("gpt-")
    for name, shape in SHAPES.items()
    if name.startswith("gpt-")
}


@cache
def load_published() -> tuple[Observation, ...]:
    """All 1,383."""
    return (*load_sharded(), *load_parallel())


@cache
def load_sharded() -> tuple[Observation, ...]:
    """The 184 of FSDP."""
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
        assert row.job is not None
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
            source="mosaicgpt" if stack == OLD else "llm-foundry",
        )
        for job, device, stack, time_s in steps
    )


@cache
def load_parallel() -> tuple[Observation, ...]:
    """The 1,199 of tensor, pipeline and data parallelism."""
    text = (resources.files(__package__) / "data" / "parallel_jobs.csv").read_text(encoding="utf-8")
    found = []
    for row in parse_rows(text, "parallel_jobs.csv"):
        assert row.job is not None
        stack = find_origin(row.cells)
        assert stack is not None
        found.append(
            Observation(
                job=row.job,
                machine=find_row_machine(row.cells, HABITS[stack].network_gbit),
                stack=stack,
                time_s=float(row.cells["step_time_s"]),
                source=row.cells["source"],
                is_doubtful=row.cells["quality"] != "clean",
            )
        )
    return tuple(found)


def find_family(stack: str) -> str:
    return FAMILIES.get(stack, stack)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """One number to be found: a parameter that some stacks have in common."""

    name: str
    stacks: tuple[str, ...]
    prior: Prior
    is_common: bool = True
    """False: by how much these stacks differ from what is common to all."""

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        return self.name, () if self.is_common else self.stacks


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
    common: Parameters
    """Of a stack that no data are from."""
    found: tuple[Found, ...]
    point: Mapping[tuple[str, tuple[str, ...]], float]
    """Where each unknown came out, by its name and the stacks that differ, if any do: where another
    fit may start."""
    sharded: Fit | None = None
    """Of stacks of data parallelism alone, by themselves."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is fitted to what."""

    jobs: JobArrays
    phases: Array
    """By job and phase of WHOLE: whether it was measured."""
    measured: Array
    """Logarithms of seconds."""
    weights: Array
    rows: Array
    """Of each job, the number of its stack."""
    unknowns: tuple[Unknown, ...]
    spreads: Array
    """By stack and unknown: how far a step of it moves the stack's parameter."""
    priors: Mapping[str, Prior]
    idle: frozenset[str] = frozenset()
    """Parameters that none of the jobs depends on."""

    def place(self, point: Array) -> Array:
        """By stack and parameter, on the scale that they are fitted on."""
        import numpy as np

        names = list(self.priors)
        places = np.tile(
            [prior.to_scale(prior.expected) for prior in self.priors.values()],
            (len(self.spreads), 1),
        )
        for column, unknown in enumerate(self.unknowns):
            places[:, names.index(unknown.name)] += self.spreads[:, column] * point[column]
        return places

    def predict(self, places: Array) -> Array:
        """Logarithms of seconds."""
        import numpy as np

        values = {
            name: (1 / (1 + np.exp(-column)) if prior.is_share else np.exp(column))[self.rows]
            for (name, prior), column in zip(self.priors.items(), places.T, strict=True)
        }
        return np.log(_sum_phases(self.jobs, cast("Any", Parameters)(**values), self.phases))

    def measure(self, point: Array) -> Array:
        import numpy as np

        residuals = (self.predict(self.place(point)) - self.measured) / SCATTER
        return np.concatenate([self.weights * soften(residuals), point])

    def differentiate(self, point: Array) -> Array:
        """Rows of the Jacobian. Stacks share no job, so that one nudge of a parameter in all of
        them serves each."""
        import numpy as np

        places = self.place(point)
        start = self.predict(places)
        slopes: dict[str, Array | float] = {}
        for column, name in enumerate(self.priors):
            if name in self.idle:
                slopes[name] = 0.0
                continue
            nudged = places.copy()
            nudged[:, column] += NUDGE
            slopes[name] = (self.predict(nudged) - start) / NUDGE
        residuals = (start - self.measured) / SCATTER
        softened = self.weights * soften_slope(residuals) / SCATTER
        columns = [
            softened * slopes[unknown.name] * self.spreads[self.rows, column]
            for column, unknown in enumerate(self.unknowns)
        ]
        return np.vstack([np.array(columns).T, np.eye(len(self.unknowns))])


def _sum_phases(jobs: JobArrays, parameters: Parameters, phases: Array) -> Array:
    total: Any = 0.0
    for part in list_parts(jobs, parameters):
        total = total + phases[:, WHOLE.index(part.phase)] * part.time_s
    return cast("Array", total)


def fit(
    observations: Sequence[Observation],
    *,
    priors: Mapping[str, Prior] = PRIORS,
    free: Sequence[str] = tuple(PRIORS),
    start: Fit | None = None,
) -> Fit:
    """`free` are the parameters to be fitted; the others are as expected. `start` is a fit to
    similar data, which saves time. Stacks of data parallelism alone are also fitted by themselves:
    what others add blurs them."""
    found = _fit_together(observations, priors, free, start)
    alone = [each for each in observations if each.stack in SHARDED]
    if not alone or len(alone) == len(observations):
        return found
    own = _fit_together(alone, priors, free, start and start.sharded)
    return replace(found, parameters={**found.parameters, **own.parameters}, sharded=own)


def _fit_together(
    observations: Sequence[Observation],
    priors: Mapping[str, Prior],
    free: Sequence[str],
    start: Fit | None,
) -> Fit:
    require("scipy")
    import numpy as np
    from scipy.optimize import least_squares

    stacks = list(dict.fromkeys(each.stack for each in observations))
    problem = _pose(observations, stacks, priors, free)
    known = {} if start is None else start.point
    solved = least_squares(
        problem.measure,
        np.array([known.get(unknown.key, 0.0) for unknown in problem.unknowns]),
        jac=problem.differentiate,
        max_nfev=MOST_ROUNDS,
        ftol=1e-4,
    )
    # Each prior is a row of the Jacobian, so that no spread is more than 1, the prior's own.
    covariance = np.linalg.inv(solved.jac.T @ solved.jac)
    places = problem.place(solved.x)
    is_common = np.array([unknown.is_common for unknown in problem.unknowns])
    common = replace(problem, spreads=problem.spreads[:1] * is_common).place(solved.x)[0]
    return Fit(
        parameters={
            stack: _read_places(row, priors) for stack, row in zip(stacks, places, strict=True)
        },
        common=_read_places(common, priors),
        found=tuple(_describe(problem, stacks, solved.x, covariance)),
        point={
            unknown.key: float(x) for unknown, x in zip(problem.unknowns, solved.x, strict=True)
        },
    )


def _pose(
    observations: Sequence[Observation],
    stacks: Sequence[str],
    priors: Mapping[str, Prior],
    free: Sequence[str],
) -> _Problem:
    import numpy as np

    unknowns = [Unknown(name=name, stacks=tuple(stacks), prior=priors[name]) for name in free]
    unknowns += [
        Unknown(name=name, stacks=group, prior=priors[name], is_common=False)
        for name in free
        if len(stacks) > 1 and name not in HARDWARE
        for group in _group(stacks, name)
    ]
    counted = Counter(each.source for each in observations)
    weights = [
        math.sqrt(min(1.0, MOST_ROWS / counted[each.source]) if each.source else 1.0)
        * (DOUBTFUL if each.is_doubtful else 1.0)
        for each in observations
    ]
    difference = 1.0 if set(stacks) <= set(SHARDED) else DIFFERENCE
    spreads = [
        [
            (unknown.prior.spread * (1.0 if unknown.is_common else difference))
            if stack in unknown.stacks
            else 0.0
            for unknown in unknowns
        ]
        for stack in stacks
    ]
    problem = _Problem(
        jobs=make_arrays([each.placed for each in observations]),
        phases=np.array(
            [[phase in each.phases for phase in WHOLE] for each in observations], float
        ),
        measured=np.log([each.time_s for each in observations]),
        weights=np.array(weights),
        rows=np.array([stacks.index(each.stack) for each in observations]),
        unknowns=tuple(unknowns),
        spreads=np.array(spreads),
        priors=priors,
    )
    return replace(problem, idle=_find_idle(problem))


def _find_idle(problem: _Problem) -> frozenset[str]:
    import numpy as np

    places = problem.place(np.zeros(len(problem.unknowns)))
    start, idle = problem.predict(places), set()
    for column, name in enumerate(problem.priors):
        nudged = places.copy()
        nudged[:, column] += 1.0
        if np.array_equal(problem.predict(nudged), start):
            idle.add(name)
    return frozenset(idle)


def _mark_phases(observations: Sequence[Observation]) -> Array:
    import numpy as np

    return np.array([[phase in each.phases for phase in WHOLE] for each in observations], float)


def _group(stacks: Sequence[str], name: str) -> list[tuple[str, ...]]:
    """Stacks that have one value of a parameter."""
    groups: dict[str, list[str]] = {}
    for stack in stacks:
        groups.setdefault(stack if name in OWN else find_family(stack), []).append(stack)
    return [tuple(group) for group in groups.values()]


def _read_places(places: Array, priors: Mapping[str, Prior]) -> Parameters:
    values = {
        name: prior.from_scale(float(place))
        for (name, prior), place in zip(priors.items(), places, strict=True)
    }
    return Parameters(**values)


def _describe(
    problem: _Problem, stacks: Sequence[str], point: Array, covariance: Array
) -> list[Found]:
    """Of each unknown, the value that its stacks have; of those that differ, together with what is
    common."""
    import numpy as np

    found = []
    names = list(problem.priors)
    for column, unknown in enumerate(problem.unknowns):
        stack = stacks.index(unknown.stacks[0])
        chosen = np.array(
            [
                other.name == unknown.name and (other.is_common or other is unknown)
                for other in problem.unknowns
            ]
        )
        steps = problem.spreads[stack] * chosen
        if unknown.is_common:
            steps = steps * (np.arange(len(steps)) == column)
        place = unknown.prior.to_scale(unknown.prior.expected) + float(steps @ point)
        found.append(
            Found(
                unknown=unknown,
                value=unknown.prior.from_scale(place),
                error=math.sqrt(max(float(steps @ covariance @ steps), 0.0)),
            )
        )
    assert all(each.unknown.name in names for each in found)
    return found


def predict_s(observation: Observation, parameters: Parameters) -> float:
    """What the model says that was measured."""
    return float(predict_all([observation], [parameters])[0])


def predict_all(observations: Sequence[Observation], parameters: Sequence[Parameters]) -> Array:
    """Seconds of each, by its own parameters."""
    import numpy as np

    values = {name: np.array([getattr(each, name) for each in parameters]) for name in PRIORS}
    phases = _mark_phases(observations)
    jobs = make_arrays([each.placed for each in observations])
    return _sum_phases(jobs, cast("Any", Parameters)(**values), phases)


def soften(residual: Array) -> Array:
    """Its square is that of small residuals, and grows with the magnitude of large ones."""
    import numpy as np

    softened: Array = np.copysign(np.sqrt(2 * (np.sqrt(1 + residual**2) - 1)), residual)
    return softened


def soften_slope(residual: Array) -> Array:
    """The derivative of `soften`."""
    import numpy as np

    root = np.sqrt(1 + residual**2)
    softened = np.sqrt(2 * (root - 1))
    is_small = np.abs(residual) < 1e-6
    return np.where(is_small, 1.0, np.abs(residual) / root / np.where(is_small, 1.0, softened))
