"""How far the cost model is off on jobs that it has not seen.

Random halves of the published tables would be too easy: many rows are near-duplicates. So whole
groups are left out of the fit and predicted by the rest:

    a size      each model size in turn
    a memory    all jobs on GPUs of 40 GB, then all on 80 GB
    the large   sizes up to 1b foretell those from 3b on

An error is that of tokens/s: predicted over measured, less 1. The interval's coverage is held out
as well: the interval of a size is made from the errors of the other sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flopwatch.predict.fit import fit, predict_s
from flopwatch.predict.observation import OLD, Observation, find_family, load_published
from flopwatch.predict.parameters import Parameters

LARGEST_SMALL = 2048
"""Hidden size of 1b."""
CONFIDENCE = 0.9
"""Of an interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A job that was foretold by a fit without its like."""

    observation: Observation
    predicted_s: float

    @property
    def error(self) -> float:
        """Of tokens/s, relatively."""
        return self.observation.time_s / self.predicted_s - 1

    @property
    def surprise(self) -> float:
        """The logarithm of measured tokens/s over predicted."""
        return math.log(self.predicted_s / self.observation.time_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    table: str
    split: str
    rows: int
    mean_error: float
    largest_error: float
    coverage: float | None = None
    """Share of rows inside their interval; None where it was not asked for."""


Group = Callable[[Observation], str | None]
"""What an observation is left out with; None: never."""


def group_by_size(observation: Observation) -> str:
    return observation.size


def group_by_memory(observation: Observation) -> str:
    return observation.machine.name


def group_large(observation: Observation) -> str | None:
    return "large" if observation.job.shape.hidden_size > LARGEST_SMALL else None


SPLITS: Mapping[str, Group] = {
    "a size left out": group_by_size,
    "a memory left out": group_by_memory,
    "small foretell large": group_large,
}


def is_slow(observation: Observation) -> bool:
    """Five published jobs that are far slower than their neighbours: all of 760m on 40 GB, and one
    of 125m on 32 GPUs whose step is a single micro-batch."""
    job, stack = observation.job, observation.stack
    if stack != OLD or not observation.machine.name.endswith("40GB"):
        return False
    is_lone = job.ranks == 32 and job.accumulation == 1 and job.micro_batch == 16
    return observation.size == "760m" or (observation.size == "125m" and is_lone)


def hold_out(observations: Sequence[Observation], group: Group) -> list[Trial]:
    trials = []
    for name in dict.fromkeys(map(group, observations)):
        if name is None:
            continue
        found = fit([each for each in observations if group(each) != name]).parameters
        trials += [
            Trial(observation=each, predicted_s=predict_s(each, _choose(found, each.stack)))
            for each in observations
            if group(each) == name
        ]
    return trials


def _choose(found: Mapping[str, Parameters], stack: str) -> Parameters:
    """Those of a stack, or where none of its jobs was there, of another of its family."""
    relatives = [other for other in found if find_family(other) == find_family(stack)]
    return found[stack if stack in found else (relatives or list(found))[0]]


def find_interval(
    surprises: Iterable[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """What measured tokens/s lie between, as multiples of predicted ones: quantiles of what was
    seen, as far out as so few of them must be taken."""
    ordered = sorted(surprises)
    beyond = (1 - confidence) / 2 * (len(ordered) + 1)
    low = max(math.floor(beyond) - 1, 0)
    return math.exp(ordered[low]), math.exp(ordered[len(ordered) - 1 - low])


def find_coverage(trials: Sequence[Trial], group: Group = group_by_size) -> float:
    """Of each group by the interval that the others make."""
    inside = 0
    for trial in trials:
        name = group(trial.observation)
        low, high = find_interval(
            other.surprise for other in trials if group(other.observation) != name
        )
        inside += low <= math.exp(trial.surprise) <= high
    return inside / len(trials)


def validate(observations: Sequence[Observation] | None = None) -> list[Score]:
    """The table for the documentation; takes a minute or two."""
    known = load_published() if observations is None else observations
    scores = []
    for split, group in SPLITS.items():
        trials = hold_out(known, group)
        with_intervals = group is group_by_size
        for table, chosen in _list_tables(trials).items():
            errors = [abs(trial.error) for trial in chosen]
            scores.append(
                Score(
                    table=table,
                    split=split,
                    rows=len(chosen),
                    mean_error=sum(errors) / len(errors),
                    largest_error=max(errors),
                    coverage=find_coverage(chosen) if with_intervals else None,
                )
            )
    return scores


def _list_tables(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    old = [trial for trial in trials if trial.observation.stack == OLD]
    usual = [trial for trial in old if not is_slow(trial.observation)]
    tables = {
        "MosaicGPT": old,
        "MosaicGPT, without 5 slow rows": usual if len(usual) < len(old) else [],
        "llm-foundry": [trial for trial in trials if trial.observation.stack != OLD],
    }
    return {name: chosen for name, chosen in tables.items() if chosen}
