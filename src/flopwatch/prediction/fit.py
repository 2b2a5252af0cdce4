"""Fitting the cost model's parameters to measured steps.

Parameters are fitted as logarithms, in units of how far each may lie from what one would expect
(`parameters.PRIORS`): what the data do not determine stays where it was expected. A residual is the
logarithm of predicted over measured time, in units of SCATTER, and large ones count in proportion
instead of by their square: a few jobs are slow for reasons of their own.

Several stacks are fitted together, with one value of what all of them share, and one of what the
stacks of a family share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from flopwatch.lazy import require
from flopwatch.prediction.cost import estimate_cost
from flopwatch.prediction.cost_parameters import HARDWARE, OWN, PRIORS, Parameters, Prior
from flopwatch.prediction.observations import Observation, find_family, list_stacks

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

SCATTER = 0.03
"""How far predictions are off where nothing is wrong, relatively."""
NAMES = tuple(field.name for field in fields(Parameters))


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
    free: Sequence[str] = NAMES,
) -> Fit:
    """`free` are the parameters to be fitted; the others are as expected."""
    require("scipy")
    import numpy as np
    from scipy.optimize import least_squares

    stacks = list_stacks(observations)
    unknowns = _list_unknowns(stacks, priors, free)

    def measure(point: Array) -> Array:
        parameters = _unpack(point, unknowns, stacks, priors)
        errors = [_find_residual(each, parameters[each.stack]) for each in observations]
        return np.array([*map(soften, errors), *point])

    solved = least_squares(measure, np.zeros(len(unknowns)), x_scale="jac")
    spreads = _find_spreads(solved.jac)
    found = tuple(
        Found(
            unknown=unknown,
            value=unknown.prior.expected * math.exp(unknown.prior.spread * x),
            error=unknown.prior.spread * spread,
        )
        for unknown, x, spread in zip(unknowns, solved.x, spreads, strict=True)
    )
    return Fit(parameters=_unpack(solved.x, unknowns, stacks, priors), found=found)


def _list_unknowns(
    stacks: Sequence[str], priors: Mapping[str, Prior], free: Sequence[str]
) -> list[Unknown]:
    return [
        Unknown(name=name, stacks=group, prior=priors[name])
        for name in free
        for group in _group(stacks, name)
    ]


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


def _find_residual(observation: Observation, parameters: Parameters) -> float:
    return math.log(predict_s(observation, parameters) / observation.time_s) / SCATTER


def soften(residual: float) -> float:
    """Its square is that of small residuals, and grows with the magnitude of large ones."""
    return math.copysign(math.sqrt(2 * (math.sqrt(1 + residual**2) - 1)), residual)


def _find_spreads(jacobian: Array) -> list[float]:
    """Of the unknowns, in units of their priors'; each of which is a row, so that it is no more
    than 1."""
    import numpy as np

    covariance = np.linalg.inv(jacobian.T @ jacobian)
    return [math.sqrt(max(float(variance), 0.0)) for variance in np.diag(covariance)]
