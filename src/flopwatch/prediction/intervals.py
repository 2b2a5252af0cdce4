"""How sure a prediction is.

A prediction's spread is one standard deviation of the logarithm of its time, as far as the cost
model can say:

    spread**2 = LEAST_SPREAD**2 + sum over parameters of (slope * error)**2

where a slope says by how much the time changes with a parameter, and an error is how well the data
have determined it. So a job that depends on what no data have said (how all-to-alls overlap, say)
has a wide spread, and one that hardly depends on it has not. Parameters that belong to something
unseen (UNSEEN) are as uncertain as before any data.

The model does not know how wrong its form is. So the 90 % interval is not 1.645 spreads wide, but
as many as held-out jobs needed: the `reach` is the quantile of their errors in units of their
spreads (conformal prediction with normalised errors). Of a known software stack, these are jobs of
its own whose size was left out, shrunk towards those of all others by what BORROWED_ROWS of them
count; of an unknown one, or a kind of parallelism or a precision that is new to it, jobs whose
whole source was left out, each source counting alike. Errors of one source are much alike, and a
quantile of known ones holds fewer of the next: so it is raised until, on average over the sources,
that of all others holds nine of ten.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from flopwatch.prediction.cost import estimate_steps
from flopwatch.prediction.job_arrays import Placed, make_arrays
from flopwatch.prediction.software_stacks import LEAST_SPREAD, PRIORS, Parameters

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

CONFIDENCE = 0.9
LEVELS = tuple(n / 100 for n in range(90, 100))
"""Quantiles that are tried for unknown software, from CONFIDENCE on."""
BORROWED_ROWS = 30
"""What all other stacks count in the reach of one: few rows say little of their tails."""
NUDGE = 1e-3
"""Of a parameter, to see what it does."""
KNOWN_SHARE_SPREAD, UNKNOWN_SHARE_SPREAD = 0.1, 0.24
"""One standard deviation of the logarithm of what large matmuls sustain of the peak of a device
that no data are from: where others have measured it, by how much such figures differ (with
libraries, numbers and power; chosen by hand), and where not, by how much devices do (from 47 % on
MI300X to 82 % on A100)."""
UNSEEN: Mapping[str, tuple[str, ...]] = {
    "device": (
        "matmul_efficiency", "matmul_traffic", "wave_tail", "bandwidth_efficiency",
        "link_efficiency", "network_efficiency", "collective_s", "hop_s", "attention_efficiency",
        "attention_backward", "attention_growth",
    ),
    "ranks": ("network_efficiency", "hop_s", "scale_loss"),
    "precision": ("matmul_efficiency", "cast_bytes"),
    "kind": (
        "collective_s", "link_efficiency", "tensor_exposed", "p2p_exposed", "context_exposed",
        "expert_exposed", "expert_imbalance", "grouped_efficiency",
    ),
}  # fmt: skip
"""Parameters that data from elsewhere say little about."""


def find_errors(
    known: Mapping[str, float], unseen: Collection[str] = (), share_spread: float = 0.0
) -> dict[str, float]:
    """Of parameters, one standard deviation of the logarithm: as the data have left it, or as
    before any data where they belong to something unseen. `share_spread` is that of what matmuls
    sustain of the device's peak."""
    errors = dict(known)
    for what in unseen:
        for name in UNSEEN[what]:
            errors[name] = PRIORS[name].spread
    errors["matmul_efficiency"] = math.hypot(errors.get("matmul_efficiency", 0.0), share_spread)
    return errors


def find_spread(placed: Placed, parameters: Parameters, errors: Mapping[str, float]) -> float:
    """Of one job."""
    return float(find_spreads([placed], [parameters], [errors])[0])


def find_spreads(
    jobs: Sequence[Placed],
    parameters: Sequence[Parameters],
    errors: Sequence[Mapping[str, float]],
) -> Array:
    """Of each job by its own parameters, and how well these are known."""
    import numpy as np

    names = [name for name in PRIORS if any(each.get(name) for each in errors)]
    count = len(jobs)
    arrays = make_arrays([*jobs] * (1 + len(names)))
    columns: dict[str, Array] = {}
    for name, prior in PRIORS.items():
        own = np.array([getattr(each, name) for each in parameters])
        columns[name] = np.tile(own, 1 + len(names))
        if name in names:
            moved = [prior.from_scale(prior.to_scale(float(value)) + NUDGE) for value in own]
            begin = (1 + names.index(name)) * count
            columns[name][begin : begin + count] = moved
    times = estimate_steps(arrays, cast("Any", Parameters)(**columns)).reshape(-1, count)
    slopes = (np.log(times[1:]) - np.log(times[0])) / NUDGE
    known = np.array([[each.get(name, 0.0) for each in errors] for name in names])
    found: Array = np.sqrt(LEAST_SPREAD**2 + np.sum((slopes * known.reshape(slopes.shape)) ** 2, 0))
    return found


def find_reach(deviations: Iterable[tuple[float, float]], level: float = CONFIDENCE) -> float:
    """The spreads that this share of them is within: each has what it is off by, in units of its
    own spread, and what it counts. One more is counted, of which nothing is known (as conformal
    prediction does).

    >>> find_reach([(n / 10, 1.0) for n in range(-9, 10)])
    0.9
    """
    ordered = sorted((abs(deviation), weight) for deviation, weight in deviations)
    total = sum(weight for _, weight in ordered)
    wanted, passed = level * (total + ordered[0][1]), 0.0
    for deviation, weight in ordered:
        passed += weight
        if passed >= wanted:
            return deviation
    return ordered[-1][0]


def find_unseen_reach(sources: Mapping[str, Sequence[float]]) -> float:
    """Of software that no data are from, by the deviations in each source that was left out.

    >>> find_unseen_reach({"one": [0.5, 1.0], "another": [-1.0, 2.0], "a third": [1.5, 1.5]})
    2.0
    """
    level = CONFIDENCE
    if len(sources) > 1:
        level = next((each for each in LEVELS if _hold(sources, each) >= CONFIDENCE), LEVELS[-1])
    return find_reach(balance(sources), level)


def _hold(sources: Mapping[str, Sequence[float]], level: float) -> float:
    """Of each source, what the others hold; the mean over all."""
    held = []
    for name, own in sources.items():
        others = {other: each for other, each in sources.items() if other != name}
        reach = find_reach(balance(others), level)
        held.append(sum(abs(deviation) <= reach for deviation in own) / len(own))
    return sum(held) / len(held)


def balance(
    sources: Mapping[str, Sequence[float]], total: float | None = None
) -> list[tuple[float, float]]:
    """Deviations with what each counts, so that sources count alike; all together `total`, or as
    many as there are."""
    total = sum(map(len, sources.values())) if total is None else total
    return [
        (deviation, total / len(sources) / len(own))
        for own in sources.values()
        for deviation in own
    ]
