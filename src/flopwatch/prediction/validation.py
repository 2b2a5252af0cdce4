"""How far the cost model is off on jobs that it has not seen.

Random halves of the published tables would be too easy: many rows are near-duplicates. So whole
groups are left out of the fit and predicted by the rest:

    a size      each model size in turn
    a memory    all jobs on GPUs of 40 GB, then all on 80 GB
    the large   sizes up to 1b predict those from 3b on

An error is that of tokens/s: predicted over measured, less 1. The interval's coverage is held out
as well: the interval of a size is made from the errors of the other sizes.

How good the predictions were that records carry: made before each was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.statistics import estimate_total_ns, median
from flopwatch.errors import UsageError
from flopwatch.prediction.fit import OLD, Observation, find_family, fit, load_published, predict_s
from flopwatch.prediction.software_stacks import Parameters
from flopwatch.records.record import Record

LARGEST_SMALL = 2048
"""Hidden size of 1b."""
CONFIDENCE = 0.9
"""Of an interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A job that was predicted by a fit without its like."""

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
    "small predict large": group_large,
}


def is_slow(observation: Observation) -> bool:
    """Five published jobs that are far slower than their neighbours: all of 760m on 40 GB, and one
    of 125m on 32 GPUs whose step is a single micro-batch."""
    job, stack = observation.job, observation.stack
    if stack != OLD or not observation.machine.name.endswith("40GB"):
        return False
    is_lone = job.ranks == 32 and job.grad_accum == 1 and job.micro_batch == 16
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


STEP = "step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A record and the prediction that it carries."""

    record: Record
    predicted_s: float
    measured_s: float
    is_inside: bool
    """Whether what was measured lies inside the prediction's interval."""
    errors: dict[str, float]
    """Of times, predicted over measured, less 1: of the step, and of its phases where it has
    them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Over several records."""

    name: str
    rows: int
    mean_error: float
    """Of magnitudes."""
    bias: float
    """The mean with signs: above 0 where predictions are too slow."""
    largest_error: float
    inside: float | None
    """Share inside its interval; None for phases, which have none."""


def judge(record: Record) -> Judged | None:
    """None where it carries no prediction that can be read, or was not measured."""
    prediction = record.prediction
    if prediction is None or record.status != "ok" or len(record.rounds) <= record.warmup_samples:
        return None
    predicted_s, low_s, high_s = (_read(prediction, key) for key in ("step_s", "low_s", "high_s"))
    if predicted_s is None or low_s is None or high_s is None:
        return None
    measured_s = estimate_total_ns(record).value / 1e9
    return Judged(
        record=record,
        predicted_s=predicted_s,
        measured_s=measured_s,
        is_inside=low_s <= measured_s <= high_s,
        errors={STEP: predicted_s / measured_s - 1, **_find_phase_errors(record, prediction)},
    )


def _find_phase_errors(record: Record, prediction: dict[str, Any]) -> dict[str, float]:
    phases = prediction.get("phases_s")
    if not isinstance(phases, dict):
        return {}
    errors = {}
    for phase, times_ns in record.samples_ns.items():
        predicted_s = _read(phases, phase)
        if predicted_s is not None:
            measured_s = median(times_ns[record.warmup_samples :]) / 1e9
            errors[phase] = predicted_s / measured_s - 1
    return errors


def _read(content: dict[str, Any], key: str) -> float | None:
    """A record is untrusted."""
    value = content.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < 1e9 else None


def judge_all(records: Sequence[Record]) -> list[Judged]:
    judged = [each for each in map(judge, records) if each is not None]
    if not judged:
        raise UsageError(
            "no record carries a prediction; calibrate this machine (`flopwatch peaks`, `flopwatch "
            "run steps`, `flopwatch calibrate`), and later runs of steps and training will"
        )
    return judged


def tally(judged: Sequence[Judged]) -> list[Tally]:
    """Over all, by phase, and day by day, where there are several."""
    names = list(dict.fromkeys(name for each in judged for name in each.errors))
    days = list(dict.fromkeys(_find_day(each) for each in judged))
    return [
        *(_count(name, [each for each in judged if name in each.errors], name) for name in names),
        *(
            _count(day, [each for each in judged if _find_day(each) == day], STEP)
            for day in days
            if len(days) > 1
        ),
    ]


def _find_day(judged: Judged) -> str:
    return judged.record.measured_at.partition("T")[0]


def _count(name: str, judged: Sequence[Judged], key: str) -> Tally:
    errors = [each.errors[key] for each in judged]
    return Tally(
        name=name,
        rows=len(errors),
        mean_error=sum(map(abs, errors)) / len(errors),
        bias=sum(errors) / len(errors),
        largest_error=max(map(abs, errors)),
        inside=sum(each.is_inside for each in judged) / len(judged) if key == STEP else None,
    )
