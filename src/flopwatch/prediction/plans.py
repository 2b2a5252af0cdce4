"""The fastest way to train a model on given hardware: which of all configurations fit, and which
are the best few. What is searched, `plan_search` has; what global batches are taken,
`batch_shares`; what each of the others loses, `plan_losers`; what happens if something is not as
assumed, `plan_sensitivity`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import Printed, TrainingJob
from flopwatch.prediction.cost import require_predictable
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.plan_limits import describe_misfit
from flopwatch.prediction.plan_losers import (
    Loser,
    describe_choice,
    list_losers,
    predict_place,
)
from flopwatch.prediction.plan_search import Searched, search
from flopwatch.prediction.plan_sensitivity import Change, list_changes
from flopwatch.prediction.predictions import Prediction
from flopwatch.prediction.software_stacks import Stack

if TYPE_CHECKING:
    from flopwatch.prediction.plan_search import Places

__all__ = ["DAY_S", "HOUR_S", "Loser", "Plan", "describe_choice", "format_days", "make_plan"]

TOKENS_PER_PARAMETER = 20
"""That a model is usually trained on, where you do not say how many."""
HOUR_S, DAY_S = 3600.0, 86400.0


def format_days(time_s: float) -> str:
    """
    >>> format_days(86400 * 29.68), format_days(4000)
    ('29.7', '0.046')
    """
    days = time_s / DAY_S
    return f"{days:,.1f}" if days >= 1 else f"{days:.2g}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Printed):
    job: TrainingJob
    """What is to be trained, on so many ranks."""
    machine: Machine
    stack: Stack
    global_batch_tokens: float
    """Asked for; that of each prediction's job was taken."""
    price: float | None
    """Of a device for an hour, in any currency."""
    train_tokens: float
    """To train on."""
    best: tuple[Prediction, ...]
    """The fastest first."""
    searched: Searched
    order: Places
    """Of what was searched, all that fits, the fastest first."""
    place: int
    """Of the best."""

    @property
    def tried(self) -> int:
        return self.searched.considered

    @property
    def fitting(self) -> int:
        return len(self.order)

    @property
    def alike(self) -> int:
        """How many are predicted within the 90 % interval of the best, itself included."""
        speeds = self.searched.tokens_per_s[self.order]
        return int((speeds >= self.best[0].low).sum())

    @cached_property
    def losers(self) -> tuple[Loser, ...]:
        return tuple(list_losers(self.searched, self.order, self.place, self.best[0]))

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What follows if something is not as it was assumed."""
        return list_changes(self.searched, self.order, self.place, self.global_batch_tokens)

    def find_best_where(self, is_possible: Callable[[TrainingJob], bool]) -> Prediction | None:
        """The fastest of those that fit and are possible; what is, follows from how the model is
        divided and recomputed."""
        known: dict[tuple[int, int], bool] = {}
        for place in map(int, self.order):
            key = self.searched.split_places[place], self.searched.recompute_places[place]
            if key not in known:
                known[key] = is_possible(self.searched.pick(place).apply(self.job))
            if known[key] and (found := predict_place(self.searched, place)):
                return found
        return None

    def find_time_s(self, prediction: Prediction) -> float:
        """To train on all tokens."""
        return self.train_tokens / prediction.tokens_per_s

    def find_device_hours(self, prediction: Prediction) -> float:
        return self.find_time_s(prediction) * prediction.job.ranks / HOUR_S

    def find_cost(self, prediction: Prediction) -> float | None:
        """In the currency of the price."""
        return None if self.price is None else self.price * self.find_device_hours(prediction)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.job.name,
            "tokens": self.train_tokens,
            "asked_global_batch_tokens": self.global_batch_tokens,
            "tried": self.tried,
            "fitting": self.fitting,
            "best": [self.describe(each) for each in self.best],
            "others": [
                {
                    "axis": loser.axis,
                    "value": loser.value,
                    "tokens_per_s": loser.best.tokens_per_s if loser.best else None,
                    "why": loser.reason,
                    "configuration": loser.configuration,
                }
                for loser in self.losers
            ],
            "alike": self.alike,
            "changes": [_describe_change(change) for change in self.changes],
        }

    def emit(self, framework: str) -> str:
        """The best configuration that a framework can run, for megatron, torchtitan or nanotron."""
        from flopwatch.output.frameworks import find_emitted

        return find_emitted(self, framework).text

    @property
    def remark(self) -> str | None:
        """Which global batch the best takes, where it is not the one asked for."""
        job = self.best[0].job
        if job.tokens_per_step == self.global_batch_tokens:
            return None
        change = job.tokens_per_step / self.global_batch_tokens - 1
        return (
            f"the best has a global batch of {job.global_batch:,} sequences, "
            f"{job.tokens_per_step:,} tokens, which {job.parallelism.data} x {job.micro_batch} "
            f"divides: "
            f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'} than the "
            f"{self.global_batch_tokens:,.0f} asked for"
        )

    def describe(self, prediction: Prediction) -> dict[str, Any]:
        job = prediction.job
        split = job.parallelism
        return {
            "tensor": split.tensor,
            "sequence": split.sequence,
            "pipeline": split.pipeline,
            "virtual_stages": split.virtual_stages,
            "schedule": split.schedule,
            "context": split.context,
            "expert": split.expert,
            "data": split.data,
            "sharding": job.sharding,
            "recompute": job.recompute,
            "micro_batch": job.micro_batch,
            "grad_accum": job.grad_accum,
            "global_batch": job.global_batch,
            "global_batch_tokens": job.tokens_per_step,
            "training_time_s": self.find_time_s(prediction),
            "gpu_hours": self.find_device_hours(prediction),
            "cost": self.find_cost(prediction),
            **prediction.to_dict(),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.job.name} on {self.job.ranks} x {self.machine.name}, seq_len "
            f"{self.job.seq_len:,}, about {self.global_batch_tokens:,.0f} tokens a step, "
            f"{self.train_tokens:,.0f} in all: {self.fitting} of {self.tried} configurations fit",
            *(
                f"  {each.tokens_per_s:12,.0f} tokens/s  "
                f"{format_days(self.find_time_s(each)):>8} days  {describe_choice(each.job)}, "
                f"grad-accum {each.job.grad_accum}"
                for each in self.best
            ),
            *([f"  {self.remark}"] if self.remark else []),
            *(
                f"  not {each.axis} {each.value}: {each.reason}"
                + (f", with {each.configuration}" if each.best else "")
                for each in self.losers
            ),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from flopwatch.output.notebook import render_plan

        return render_plan(self)


def _describe_change(change: Change) -> dict[str, Any]:
    chosen, best = change.chosen, change.best
    return {
        "what": change.what,
        "tokens_per_s": chosen.tokens_per_s if chosen else None,
        "best_tokens_per_s": best.tokens_per_s if best else None,
        "is_same": change.is_same,
        "best_configuration": describe_choice(best.job) if best else None,
    }


def make_plan(
    job: TrainingJob,
    machine: Machine,
    stack: Stack,
    *,
    global_batch_tokens: float,
    train_tokens: float,
    price: float | None = None,
    shown: int = 5,
) -> Plan:
    """Of the job's model, sequence length, precision, optimizer and ranks; all else is searched,
    but for the kinds of parallelism that it has."""
    require_plannable(job, machine)
    searched = search(job, machine, stack, global_batch_tokens)
    if not len(searched):
        raise UsageError(
            f"{job.ranks} ranks cannot be divided so; leave out one of --tp, --pp, --cp and --ep"
        )
    order = searched.sort_fitting()
    best = list(_list_best(searched, order, shown))
    if not best:
        raise UsageError(describe_misfit(searched, global_batch_tokens))
    return Plan(
        job=job,
        machine=machine,
        stack=stack,
        global_batch_tokens=global_batch_tokens,
        price=price,
        train_tokens=train_tokens,
        best=tuple(prediction for _, prediction in best),
        searched=searched,
        order=order,
        place=best[0][0],
    )


def require_plannable(job: TrainingJob, machine: Machine) -> None:
    require_predictable(job, "plan")
    if machine.memory_bytes is None:
        raise UsageError(
            f"how much memory {machine.name} has is not known, and so not what fits; choose a "
            "device that says, as A100-80GB does"
        )


def _list_best(searched: Searched, order: Places, shown: int) -> Iterator[tuple[int, Prediction]]:
    """Of those that differ in details of their schedule and their micro-batch alone, the best."""
    seen = set()
    for place in map(int, order):
        choice = searched.pick(place)
        split = choice.split
        key = (split.tensor, split.pipeline, split.context, split.expert, split.sharding,
               choice.recompute)  # fmt: skip
        if key in seen:
            continue
        found = predict_place(searched, place)
        if found is not None:
            seen.add(key)
            yield place, found
        if len(seen) == shown:
            return
