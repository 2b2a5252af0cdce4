"""Fitting the cost model's parameters to measured steps.

Parameters are fitted as logarithms (shares as those of their odds), in units of how far each may
lie from what is expected of it (`software_stacks.PRIORS`): what the data do not determine stays
where it was expected. A residual is the logarithm of predicted over measured time, in units of
SCATTER, and large ones count in proportion instead of by their square: a few jobs are slow for
reasons of their own. No table counts more than MOST_ROWS rows.

Stacks are fitted together. A parameter of HARDWARE has one value for all of them; any other has a
common value, and each family of stacks differs from that by a little. The common values are those
of a stack that no data are from: `typical`.

The solver is Gauss-Newton's: priors keep each step small, and a step that makes things worse is
halved. Fits that leave jobs out (`fit_without`) start where the fit to all of them ended, with its
slopes, which spares most of the work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

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
SETTLED = 1e-4
"""Of what is minimised: a step that gains less than this share is the last."""
HALVINGS = 6
"""Of a step that makes things worse."""
MOVED = 0.1
"""Of what is expected of a parameter: slopes are found anew where one has moved farther."""
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
    errors: Mapping[str, Mapping[str, float]]
    """By stack and parameter: one standard deviation of the logarithm,"""
    common_errors: Mapping[str, float]
    """and of a stack that no data are from, with how far stacks differ."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is fitted to what."""

    observations: tuple[Observation, ...]
    stacks: tuple[str, ...]
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
        """Residuals, in units of SCATTER."""
        residuals: Array = (self.predict(self.place(point)) - self.measured) / SCATTER
        return residuals

    def find_slopes(self, point: Array) -> Array:
        """By parameter and job. Stacks share no job, so that one nudge of a parameter in all of
        them serves each."""
        import numpy as np

        places = self.place(point)
        start = self.predict(places)
        slopes = np.zeros((len(self.priors), len(start)))
        for column, name in enumerate(self.priors):
            if name not in self.idle:
                nudged = places.copy()
                nudged[:, column] += NUDGE
                slopes[column] = (self.predict(nudged) - start) / NUDGE
        return slopes

    def find_jacobian(self, slopes: Array, residuals: Array) -> Array:
        """Rows are jobs, columns unknowns."""
        names = list(self.priors)
        softened = self.weights * soften_slope(residuals) / SCATTER
        chosen = slopes[[names.index(unknown.name) for unknown in self.unknowns]]
        jacobian: Array = (softened * chosen).T * self.spreads[self.rows]
        return jacobian

    def judge(self, point: Array, residuals: Array) -> float:
        """What is minimised."""
        return float(sum((self.weights * soften(residuals)) ** 2) + sum(point**2))


@dataclass(frozen=True, slots=True)
class _Solution:
    point: Array
    slopes: Array
    covariance: Array


def _solve(problem: _Problem, start: _Solution | None = None) -> _Solution:
    """From the solution of a similar problem, whose slopes serve until unknowns have moved."""
    import numpy as np

    point: Array = np.zeros(len(problem.unknowns)) if start is None else start.point
    slopes = problem.find_slopes(point) if start is None else start.slopes
    known_at = point
    residuals = problem.measure(point)
    worth = problem.judge(point, residuals)
    for _ in range(MOST_ROUNDS):
        jacobian = problem.find_jacobian(slopes, residuals)
        normal = jacobian.T @ jacobian + np.eye(len(point))
        downhill = jacobian.T @ (problem.weights * soften(residuals)) + point
        step = cast("Array", np.linalg.solve(normal, downhill))
        found = _search(problem, point, step, worth)
        gain = 0.0
        if found is not None:
            gain = (worth - found[2]) / worth
            point, residuals, worth = found
        has_moved = bool(np.max(np.abs(point - known_at)) > MOVED)
        if gain < SETTLED and not has_moved:
            break
        if has_moved:
            slopes, known_at = problem.find_slopes(point), point
    jacobian = problem.find_jacobian(slopes, residuals)
    # Each prior adds 1 to the diagonal, so that no spread is more than 1, the prior's own.
    covariance = cast("Array", np.linalg.inv(jacobian.T @ jacobian + np.eye(len(point))))
    return _Solution(point, slopes, covariance)


def _search(
    problem: _Problem, point: Array, step: Array, worth: float
) -> tuple[Array, Array, float] | None:
    """The first of ever shorter steps that is an improvement."""
    for halving in range(HALVINGS):
        tried = point - step / 2**halving
        residuals = problem.measure(tried)
        if (judged := problem.judge(tried, residuals)) < worth:
            return tried, residuals, judged
    return None


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
) -> Fit:
    """`free` are the parameters to be fitted; the others are as expected. Stacks of data
    parallelism alone are also fitted by themselves: what others add blurs them."""
    (found,) = _fit_each(observations, [()], priors, free)
    return found


def fit_without(
    observations: Sequence[Observation], left_out: Sequence[Sequence[int]]
) -> Iterator[Fit]:
    """A fit for each of `left_out`, which has the numbers of the observations to do without. Stacks
    that nothing is left of are as those of their family."""
    return _fit_each(observations, left_out, PRIORS, tuple(PRIORS))


def _fit_each(
    observations: Sequence[Observation],
    left_out: Sequence[Sequence[int]],
    priors: Mapping[str, Prior],
    free: Sequence[str],
) -> Iterator[Fit]:
    import numpy as np

    together = _pose(observations, priors, free)
    is_sharded = np.array([each.stack in SHARDED for each in observations])
    alone = None
    if is_sharded.any() and not is_sharded.all():
        alone = _pose([each for each in observations if each.stack in SHARDED], priors, free)
    problems = [each for each in (together, alone) if each is not None]
    starts: list[_Solution | None] = [None] * len(problems)
    if any(left_out):
        starts = [_solve(each) for each in problems]
    for rows in left_out:
        used = np.ones(len(observations), bool)
        used[list(rows)] = False
        fits = []
        for problem, start in zip(problems, starts, strict=True):
            kept = used if problem is together else used[is_sharded]
            fits.append(_fit_some(problem, kept, start))
        found = fits[0]
        if alone is not None:
            found = replace(
                found,
                parameters={**found.parameters, **fits[1].parameters},
                errors={**found.errors, **fits[1].errors},
            )
        yield found


def _fit_some(problem: _Problem, used: Array, start: _Solution | None) -> Fit:
    import numpy as np

    if start is None:
        solution = _solve(problem)
    elif used.all():
        solution = start
    else:
        problem = replace(problem, weights=_weigh(problem.observations, used))
        solution = _solve(problem, start)
    places = problem.place(solution.point)
    is_common = np.array([unknown.is_common for unknown in problem.unknowns])
    common = replace(problem, spreads=problem.spreads[:1] * is_common).place(solution.point)[0]
    described = tuple(_describe(problem, solution))
    shared = {each.unknown.name: each.error for each in described if each.unknown.is_common}
    own = {
        stack: {
            each.unknown.name: each.error
            for each in described
            if not each.unknown.is_common and stack in each.unknown.stacks
        }
        for stack in problem.stacks
    }
    return Fit(
        parameters={
            stack: _read_places(row, problem.priors)
            for stack, row in zip(problem.stacks, places, strict=True)
        },
        common=_read_places(common, problem.priors),
        found=described,
        errors={stack: {**shared, **errors} for stack, errors in own.items()},
        common_errors={
            name: error
            if name in HARDWARE
            else math.hypot(error, DIFFERENCE * problem.priors[name].spread)
            for name, error in shared.items()
        },
    )


def _weigh(observations: Sequence[Observation], used: Array) -> Array:
    """The root of what each counts; 0 of what is not used."""
    import numpy as np

    counted = Counter(
        each.source for each, is_used in zip(observations, used, strict=True) if is_used
    )
    return np.array(
        [
            math.sqrt(min(1.0, MOST_ROWS / counted[each.source]) if each.source else 1.0)
            * (DOUBTFUL if each.is_doubtful else 1.0)
            if is_used
            else 0.0
            for each, is_used in zip(observations, used, strict=True)
        ]
    )


def _pose(
    observations: Sequence[Observation], priors: Mapping[str, Prior], free: Sequence[str]
) -> _Problem:
    import numpy as np

    stacks = tuple(dict.fromkeys(each.stack for each in observations))
    unknowns = [Unknown(name=name, stacks=stacks, prior=priors[name]) for name in free]
    unknowns += [
        Unknown(name=name, stacks=group, prior=priors[name], is_common=False)
        for name in free
        if len(stacks) > 1 and name not in HARDWARE
        for group in _group(stacks, name)
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
        observations=tuple(observations),
        stacks=stacks,
        jobs=make_arrays([each.placed for each in observations]),
        phases=_mark_phases(observations),
        measured=np.log([each.time_s for each in observations]),
        weights=_weigh(observations, np.ones(len(observations), bool)),
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


def _describe(problem: _Problem, solution: _Solution) -> list[Found]:
    """Of each unknown, the value that its stacks have; of those that differ, together with what is
    common."""
    import numpy as np

    found = []
    for column, unknown in enumerate(problem.unknowns):
        stack = problem.stacks.index(unknown.stacks[0])
        chosen = np.array(
            [
                other.name == unknown.name and (other.is_common or other is unknown)
                for other in problem.unknowns
            ]
        )
        steps = problem.spreads[stack] * chosen
        if unknown.is_common:
            steps = steps * (np.arange(len(steps)) == column)
        place = unknown.prior.to_scale(unknown.prior.expected) + float(steps @ solution.point)
        found.append(
            Found(
                unknown=unknown,
                value=unknown.prior.from_scale(place),
                error=math.sqrt(max(float(steps @ solution.covariance @ steps), 0.0)),
            )
        )
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
