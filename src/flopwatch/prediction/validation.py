"""How far the cost model is off on jobs that it has not seen.

Random halves of the published tables would be too easy: many rows are near-duplicates. So whole
groups are left out of the fit and predicted by the rest:

    a size      each model size of each source in turn (of `vtrain_single`, each width and depth; of
                `internevo`, which has one model, each number of GPUs; of `bigscience_v100`, which
                has one that is not doubtful, each number of stages)
    a source    each source in turn, predicted as one whose software stack is not known
    a device    all jobs of each device in turn
    the large   models up to a width of 2,048 predict the others
    a kind      all jobs with tensor parallelism are predicted by those without, and all with
                pipeline parallelism

An error is that of tokens/s: predicted over measured, less 1. The interval's coverage is held out
as well: the reach (`intervals`) of a group is made from the errors of the other groups, and where
more than a size is left out, from those of other sources alone. Rows that their source calls
doubtful count in no error.

Beside each stand two baselines: a constant MFU, the best for the source in hindsight, and the cost
model with every efficiency at 1 and no overhead, which is FLOPs plus bandwidth.

Of configurations of the same job (model, sequence length, batch and GPUs), how well their order is
predicted (Spearman's correlation), and what share of the best measured throughput the predicted
best one reaches. A configuration that was measured several times counts once, by its median.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from flopwatch.analysis.statistics import median
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.fit import fit_without, predict_all
from flopwatch.prediction.intervals import (
    BORROWED_ROWS,
    balance,
    find_reach,
    find_spreads,
    find_unseen_reach,
)
from flopwatch.prediction.published_steps import Observation, find_family, load_published
from flopwatch.prediction.software_stacks import LEAST_SPREAD, OLD, Parameters

LARGEST_SMALL = 2048
"""Hidden size of 1b."""
FEWEST = 3
"""Configurations of a job whose order says something."""
IDEAL = Parameters(
    **{
        **{each.name: 1.0 for each in fields(Parameters)},
        **dict.fromkeys(
            (
                *("matmul_traffic", "wave_tail", "cast_bytes", "loss_bytes", "score_bytes"),
                *("block_s", "micro_batch_s", "step_s", "collective_s", "hop_s", "scale_loss"),
                "pressure_s_per_gb",
            ),
            0.0,
        ),
    }
)
"""FLOPs plus bandwidth: all at the rate of large matmuls, of memory, links and network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A job that was predicted by a fit without its like."""

    observation: Observation
    predicted_s: float
    spread: float = LEAST_SPREAD
    """One standard deviation of the logarithm, as far as the fit can say (`intervals`)."""

    @property
    def deviation(self) -> float:
        """By how many spreads it was off."""
        return math.log(self.predicted_s / self.observation.time_s) / self.spread

    @property
    def error(self) -> float:
        """Of tokens/s, relatively."""
        return self.observation.time_s / self.predicted_s - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    table: str
    split: str
    rows: int
    mean_error: float
    median_error: float
    largest_error: float
    coverage: float | None = None
    """Share of rows inside their interval; None where there are no other groups to make it of."""
    rank_correlation: float | None = None
    """Among configurations of the same job; None where no job has several."""
    best_share: float | None = None
    """Of the best measured throughput, what the predicted best configuration reaches."""
    constant_mfu_error: float | None = None
    roofline_error: float | None = None


Group = Callable[[Observation], str | None]
"""What an observation is left out with; None: never."""


def group_by_size(observation: Observation) -> str:
    job, source = observation.job, observation.source
    if source == "internevo":
        return f"{source} {job.ranks}"
    if source == "bigscience_v100":
        return f"{source} {job.shape.hidden_size} {job.parallelism.pipeline}"
    depth = f"x{job.shape.layers}" if source == "vtrain_single" else ""
    return f"{source} {job.shape.hidden_size}{depth}"


def group_by_source(observation: Observation) -> str:
    return observation.source


def group_by_device(observation: Observation) -> str:
    return observation.machine.name


def group_large(observation: Observation) -> str | None:
    return "large" if observation.job.shape.hidden_size > LARGEST_SMALL else None


def group_tensor(observation: Observation) -> str | None:
    return "tensor" if observation.job.parallelism.tensor > 1 else None


def group_pipeline(observation: Observation) -> str | None:
    return "pipeline" if observation.job.parallelism.pipeline > 1 else None


SPLITS: Mapping[str, Group] = {
    "a size left out": group_by_size,
    "a source left out": group_by_source,
    "a device left out": group_by_device,
    "small predict large": group_large,
    "tensor left out": group_tensor,
    "pipeline left out": group_pipeline,
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
    """Of stacks that none of the others is from, predicted as typical."""
    trials = []
    names = [name for name in dict.fromkeys(map(group, observations)) if name is not None]
    left_out = [[n for n, each in enumerate(observations) if group(each) == name] for name in names]
    for rows, found in zip(left_out, fit_without(observations, left_out), strict=True):
        chosen = [observations[row] for row in rows]
        kept = {each.stack for n, each in enumerate(observations) if n not in set(rows)}
        is_known = group is not group_by_source
        stacks = [_choose(kept, each.stack) if is_known else None for each in chosen]
        parameters = [found.parameters[each] if each else found.common for each in stacks]
        errors = [found.errors[each] if each else found.common_errors for each in stacks]
        times = predict_all(chosen, parameters)
        spreads = find_spreads([each.placed for each in chosen], parameters, errors)
        trials += [
            Trial(observation=each, predicted_s=float(time_s), spread=float(spread))
            for each, time_s, spread in zip(chosen, times, spreads, strict=True)
        ]
    return trials


def _choose(kept: Collection[str], stack: str) -> str | None:
    """The stack, or where none of its jobs was there, another of its family."""
    relatives = sorted(other for other in kept if find_family(other) == find_family(stack))
    return stack if stack in kept else (relatives[0] if relatives else None)


def find_own_reach(own: Sequence[Trial], trials: Sequence[Trial]) -> float:
    """Of a family of stacks, whose own trials are among all."""
    family = {find_family(trial.observation.stack) for trial in own}
    others = [t for t in trials if find_family(t.observation.stack) not in family]
    borrowed = balance(list_deviations(others), BORROWED_ROWS) if others else []
    return find_reach([*((t.deviation, 1.0) for t in own), *borrowed])


def list_deviations(trials: Sequence[Trial]) -> dict[str, list[float]]:
    """By source."""
    sources: dict[str, list[float]] = {}
    for trial in trials:
        sources.setdefault(trial.observation.source, []).append(trial.deviation)
    return sources


def find_coverage(chosen: Sequence[Trial], trials: Sequence[Trial], group: Group) -> float | None:
    """Of the trials of a source, by reaches that are made without what each was left out with; None
    where nothing else is there. `trials` are all of the split."""
    inside = 0
    if group is not group_by_size:
        sources = {trial.observation.source for trial in chosen}
        others = [trial for trial in trials if trial.observation.source not in sources]
        if not others:
            return None
        reach = find_unseen_reach(list_deviations(others))
        return sum(abs(trial.deviation) <= reach for trial in chosen) / len(chosen)
    families = {find_family(trial.observation.stack) for trial in chosen}
    for name in dict.fromkeys(group(trial.observation) for trial in chosen):
        rest = [trial for trial in trials if group(trial.observation) != name]
        if not rest:
            return None
        own = [trial for trial in rest if find_family(trial.observation.stack) in families]
        reach = find_own_reach(own, rest)
        inside += sum(
            abs(trial.deviation) <= reach for trial in chosen if group(trial.observation) == name
        )
    return inside / len(chosen)


def validate(observations: Sequence[Observation] | None = None) -> list[Score]:
    """The table for the documentation; takes half a minute."""
    # BLAS reads it where numpy is first imported. Matrices are small: threads only wait for others.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    known = load_published() if observations is None else observations
    scores = []
    for split, group in SPLITS.items():
        trials = [each for each in hold_out_known(known, group) if not each.observation.is_doubtful]
        for table, chosen in list_tables(trials).items():
            scores.append(score(table, split, group, chosen, trials))
    return scores


@cache
def _hold_out_published(split: str) -> tuple[Trial, ...]:
    return tuple(hold_out(load_published(), SPLITS[split]))


def hold_out_known(observations: Sequence[Observation], group: Group) -> Sequence[Trial]:
    """What was held out of the published jobs before is known."""
    if observations is load_published():
        return _hold_out_published(next(name for name, each in SPLITS.items() if each is group))
    return hold_out(observations, group)


def score(
    table: str, split: str, group: Group, chosen: Sequence[Trial], trials: Sequence[Trial]
) -> Score:
    """`trials` are all of the split."""
    errors = sorted(abs(trial.error) for trial in chosen)
    order = [found for found in map(_judge_order, _group_jobs(chosen)) if found is not None]
    roofline = predict_all([t.observation for t in chosen], [IDEAL] * len(chosen))
    return Score(
        table=table,
        split=split,
        rows=len(chosen),
        mean_error=sum(errors) / len(errors),
        median_error=errors[len(errors) // 2],
        largest_error=errors[-1],
        coverage=find_coverage(chosen, trials, group),
        rank_correlation=_average([each[0] for each in order]),
        best_share=_average([each[1] for each in order]),
        constant_mfu_error=_find_constant_error(chosen),
        roofline_error=_average(
            [
                abs(trial.observation.time_s / float(time_s) - 1)
                for trial, time_s in zip(chosen, roofline, strict=True)
            ]
        ),
    )


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _find_constant_error(trials: Sequence[Trial]) -> float | None:
    """Of the one MFU that is best for them in hindsight."""
    ideal = [
        sum(p.forward + p.backward for p in count_flops_by_part(t.observation.job).values())
        * t.observation.job.grad_accum
        / (
            t.observation.machine.peak_flops_per_s[t.observation.job.arithmetic.matmul_dtype]
            * t.observation.job.ranks
            / t.observation.job.parallelism.data
        )
        for t in trials
    ]
    shares = [seconds / t.observation.time_s for seconds, t in zip(ideal, trials, strict=True)]
    constant = median(shares)
    return _average([abs(constant / share - 1) for share in shares])


def _group_jobs(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Configurations of the same job."""
    jobs: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        job = trial.observation.job
        key = (trial.observation.source, _describe_model(job), job.ranks, job.global_batch)
        jobs.setdefault(key, []).append(trial)
    return list(jobs.values())


def _describe_model(job: TrainingJob) -> tuple[Any, ...]:
    """Vocabularies are padded for each configuration."""
    return replace(job.shape, vocabulary=1, padded_vocabulary=None), job.seq_len


def _judge_order(trials: Sequence[Trial]) -> tuple[float, float] | None:
    """Spearman's correlation of predicted and measured times, and the share of the best."""
    repeats: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        job = trial.observation.job
        key = (job.parallelism, job.micro_batch, job.recompute, job.precision)
        repeats.setdefault(key, []).append(trial)
    if len(repeats) < FEWEST:
        return None
    measured = [median([each.observation.time_s for each in same]) for same in repeats.values()]
    predicted = [same[0].predicted_s for same in repeats.values()]
    ranks = (_rank(measured), _rank(predicted))
    mean = (len(measured) - 1) / 2
    both, one, other = (
        sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True))
        for x, y in (ranks, (ranks[0], ranks[0]), (ranks[1], ranks[1]))
    )
    if not one * other:
        return None
    chosen = measured[predicted.index(min(predicted))]
    return both / math.sqrt(one * other), min(measured) / chosen


def _rank(values: Sequence[float]) -> list[float]:
    """Places in order; equal values share theirs."""
    ordered = sorted(values)
    return [ordered.index(each) + (ordered.count(each) - 1) / 2 for each in values]


def list_tables(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """By source; of MosaicGPT also without its slow rows."""
    tables: dict[str, list[Trial]] = {}
    for trial in trials:
        tables.setdefault(trial.observation.source, []).append(trial)
    old = tables.get("mosaicgpt", [])
    usual = [trial for trial in old if not is_slow(trial.observation)]
    if 0 < len(usual) < len(old):
        tables["mosaicgpt, without 5 slow rows"] = usual
    return tables
