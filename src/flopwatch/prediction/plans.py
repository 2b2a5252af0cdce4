"""The fastest way to train a model on given hardware: which of all configurations fit, and what
each of the others loses.

Searched are sharding, recomputation and the micro-batch. Gradient accumulation follows from the
global batch, which may differ from the one asked for by up to 5 %, so that micro-batches divide it.
Otherwise 61 sequences of a device, say, could be computed one at a time or all at once, and nothing
in between. A device's share of the global batch is

    the one asked for, where that is a whole number of sequences on every device,
    else that within 5 % which has most factors of two, and of several the nearest: 4M tokens, which
    are 15.3 sequences of 4,096 tokens on each of 64 devices, become 16, and so 2**22 tokens,
    and for micro-batches that do not divide it, their multiple that is nearest to the one asked
    for, within 5 % too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.parallelism import Sharding
from flopwatch.jobs.training_job import RECOMPUTES, Printed, TrainingJob
from flopwatch.prediction.cost import require_predictable
from flopwatch.prediction.hardware import GIB, Machine
from flopwatch.prediction.predictions import Prediction, find_pressure, predict
from flopwatch.prediction.software_stacks import Stack

SHARDINGS: tuple[Sharding, ...] = ("ddp", "zero2", "full", "hybrid")
TOKENS_PER_PARAMETER = 20
"""That a model is usually trained on, where you do not say how many."""
NEAR = 0.05
"""By how much a batch may differ from what was asked for."""
FINE = 16
"""Micro-batches above are tried in steps of a sixteenth to an eighth of them."""
HOUR_S, DAY_S = 3600.0, 86400.0
Axis = Literal["sharding", "recompute", "micro_batch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loser:
    """The best of those that differ from the winner in one respect."""

    axis: Axis
    value: str
    best: Prediction | None
    """None: none of them fits."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
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
    losers: tuple[Loser, ...]
    tried: int
    fitting: int

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
            "best": [self._describe(each) for each in self.best],
            "others": [
                {
                    "axis": loser.axis,
                    "value": loser.value,
                    "tokens_per_s": loser.best.tokens_per_s if loser.best else None,
                    "why": loser.reason,
                }
                for loser in self.losers
            ],
        }

    @property
    def remark(self) -> str | None:
        """Which global batch the best takes, where it is not the one asked for."""
        job = self.best[0].job
        if job.tokens_per_step == self.global_batch_tokens:
            return None
        change = job.tokens_per_step / self.global_batch_tokens - 1
        return (
            f"the best has a global batch of {job.global_batch:,} sequences, "
            f"{job.tokens_per_step:,} tokens, which {job.ranks} x {job.micro_batch} divides: "
            f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'} than the "
            f"{self.global_batch_tokens:,.0f} asked for"
        )

    def _describe(self, prediction: Prediction) -> dict[str, Any]:
        job = prediction.job
        return {
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
                f"  {each.tokens_per_s:12,.0f} tokens/s  {self.find_time_s(each) / DAY_S:8.1f} days"
                f"  sharding {each.job.sharding}, recompute {each.job.recompute}, micro-batch "
                f"{each.job.micro_batch}, grad-accum {each.job.grad_accum}"
                for each in self.best
            ),
            *([f"  {self.remark}"] if self.remark else []),
            *(f"  not {each.axis} {each.value}: {each.reason}" for each in self.losers),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from flopwatch.output.notebook import render_plan

        return render_plan(self)


def make_plan(
    job: TrainingJob,
    machine: Machine,
    stack: Stack,
    *,
    global_batch_tokens: float,
    train_tokens: float | None = None,
    price: float | None = None,
    shown: int = 5,
) -> Plan:
    """Of the job's model, sequence length, precision, optimizer and ranks; all else is searched.
    Without `train_tokens`, it trains on TOKENS_PER_PARAMETER for each parameter."""
    require_predictable(job, "plan")
    if train_tokens is not None and train_tokens < global_batch_tokens:
        raise UsageError(
            f"a step of {global_batch_tokens:,.0f} tokens is more than the {train_tokens:,.0f} "
            "to train on; choose a smaller batch, or train on more"
        )
    if machine.memory_bytes is None:
        raise UsageError(
            f"how much memory {machine.name} has is not known, and so not what fits; choose a "
            "device that says, as A100-80GB does"
        )
    tried = list(_try_all(job, machine, stack, global_batch_tokens / (job.seq_len * job.ranks)))
    fitting = sorted(filter(_has_room, tried), key=lambda each: -each.tokens_per_s)
    if not fitting:
        raise UsageError(_describe_misfit(machine, tried))
    return Plan(
        job=job,
        machine=machine,
        stack=stack,
        global_batch_tokens=global_batch_tokens,
        price=price,
        train_tokens=train_tokens or float(TOKENS_PER_PARAMETER * job.parameters),
        best=tuple(fitting[:shown]),
        losers=tuple(_list_losers(fitting[0], tried)),
        tried=len(tried),
        fitting=len(fitting),
    )


def _has_room(prediction: Prediction) -> bool:
    """Whether it fits, and not just so: what memory it takes is predicted, too."""
    return bool(prediction.memory.fits) and not find_pressure(prediction.memory)


def choose_share(asked: float) -> int:
    """Sequences of a device in a step, where so many are asked for: see above.

    >>> [choose_share(asked) for asked in (4e6 / (4096 * 64), 4e6 / (2048 * 8), 100, 0.3)]
    [16, 256, 100, 1]
    """
    if asked == int(asked):
        return max(1, int(asked))
    low, high = math.ceil((1 - NEAR) * asked), math.floor((1 + NEAR) * asked)
    factor = 1 << max(high, 1).bit_length()
    while factor > 1:
        nearest = factor * max(1, round(asked / factor))
        if low <= nearest <= high:
            return nearest
        factor //= 2
    return max(1, round(asked))


def list_shares(asked: float) -> Iterator[tuple[int, int]]:
    """Micro-batches with how many of them a step has: those whose multiples come near to what is
    asked for, finely as long as they are small.

    >>> [micro_batch for micro_batch, _ in list_shares(4e6 / (4096 * 64))]
    [1, 2, 3, 4, 5, 8, 15, 16]
    >>> list(list_shares(7))
    [(1, 7), (7, 1)]
    """
    share, micro_batch = choose_share(asked), 1
    while micro_batch <= max(share, (1 + NEAR) * asked):
        times = share // micro_batch if share % micro_batch == 0 else round(asked / micro_batch)
        if micro_batch * times == share or abs(micro_batch * times - asked) <= NEAR * asked:
            yield micro_batch, times
        micro_batch += max(1, 2 ** (micro_batch.bit_length() - FINE.bit_length()))


def _try_all(
    job: TrainingJob, machine: Machine, stack: Stack, asked: float
) -> Iterator[Prediction]:
    """`asked` are sequences of a device in a step."""
    shardings: Sequence[Sharding] = SHARDINGS if job.ranks > 1 else ("none",)
    for sharding, recompute in product(shardings, RECOMPUTES):
        for micro_batch, grad_accum in list_shares(asked):
            tried = replace(
                job,
                micro_batch=micro_batch,
                grad_accum=grad_accum,
                recompute=recompute,
                parallelism=replace(job.parallelism, sharding=sharding),
            )
            try:
                prediction = predict(tried, machine, stack)
            except Unsupported:  # so few ranks cannot be divided in two ways
                break
            yield prediction
            if not _has_room(prediction):  # nor do larger ones
                break


def _describe_misfit(machine: Machine, tried: Sequence[Prediction]) -> str:
    least = min(tried, key=lambda each: each.memory.total_bytes)
    needed, available = least.memory.total_bytes / GIB, (machine.memory_bytes or 0) / GIB
    devices = f"each of {least.job.ranks} devices" if least.job.ranks > 1 else "one device"
    return (
        f"nothing fits: the smallest configuration needs {needed:.1f} GiB on {devices} with "
        f"{available:.1f} GiB; take more or larger devices, or a smaller model"
    )


def _list_losers(winner: Prediction, tried: Sequence[Prediction]) -> Iterator[Loser]:
    """For each value of each axis that is not the winner's, the best with it; of micro-batches, the
    next smaller and the next larger one, with all else as the winner has it."""
    job = winner.job
    axes: Mapping[Axis, Sequence[str]] = {
        "sharding": SHARDINGS if job.ranks > 1 else (),
        "recompute": RECOMPUTES,
    }
    for axis, values in axes.items():
        for value in values:
            alike = [each for each in tried if getattr(each.job, axis) == value]
            if alike and value != getattr(job, axis):
                yield _judge(axis, value, alike, winner)
    alike = [each for each in tried if all(getattr(each.job, a) == getattr(job, a) for a in axes)]
    smaller = [each for each in alike if each.job.micro_batch < job.micro_batch]
    larger = [each for each in alike if each.job.micro_batch > job.micro_batch]
    for each in (*smaller[-1:], *larger[:1]):
        yield _judge("micro_batch", str(each.job.micro_batch), [each], winner)


def _judge(axis: Axis, value: str, alike: Sequence[Prediction], winner: Prediction) -> Loser:
    fitting = list(filter(_has_room, alike))
    if not fitting:
        least = min(alike, key=lambda each: each.memory.total_bytes).memory
        most = max(least.parts.items(), key=lambda part: part[1])
        reason = (
            f"does not fit: {least.total_bytes / GIB:.0f} GiB at the least, of which "
            f"{most[1] / GIB:.0f} {most[0]}"
        )
        return Loser(axis=axis, value=value, best=None, reason=reason)
    best = max(fitting, key=lambda each: each.tokens_per_s)
    return Loser(axis=axis, value=value, best=best, reason=_compare(best, winner))


def _compare(loser: Prediction, winner: Prediction) -> str:
    """What takes longer, for each token: the part that differs most."""
    mine, best = (
        {name: part.time_s / each.job.tokens_per_step for name, part in each.cost.by_name.items()}
        for each in (loser, winner)
    )
    slower = {name: mine[name] - best.get(name, 0.0) for name in mine}
    name = max(slower, key=lambda part: slower[part])
    whole = winner.cost.step_s / winner.job.tokens_per_step
    batch = f"micro-batch {loser.job.micro_batch}"
    if slower[name] <= 0.001 * whole:
        return f"as fast, at {batch}"
    return f"{100 * slower[name] / whole:.1f} % of a step more for {name}, at {batch}"
