"""Fitting the cost model's parameters to measured steps.

Parameters are fitted as logarithms (shares as those of their odds), in units of how far each may
lie from what is expected of it (`software_stacks.PRIORS`): what the data do not determine stays
where it was expected. A residual is the logarithm of predicted over measured time, in units of
SCATTER, and large ones count in proportion instead of by their square: a few jobs are slow for
reasons of their own. No table counts more than MOST_ROWS rows.

Stacks are fitted together. A parameter of HARDWARE has one value for all of them; any other has a
common value, and each family of stacks differs from that by a little. The common values are those
of a stack that no data are from: `typical`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from flopwatch.lazy import require
from flopwatch.prediction.cost import list_parts
from flopwatch.prediction.job_arrays import JobArrays, make_arrays
from flopwatch.prediction.published_steps import WHOLE, Observation, find_family
from flopwatch.prediction.software_stacks import (
    HARDWARE,
    OWN,
    PRIORS,
    SHARDED,
    Parameters,
    Prior,
)

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
