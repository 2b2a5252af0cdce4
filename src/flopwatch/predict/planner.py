"""The fastest way to train a model on given hardware: which of all configurations fit, and what
each of the others loses.

Searched are how devices share the model, what is computed again, and the micro-batch: all divisors
of a device's share of the global batch. Accumulation follows from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from flopwatch.errors import Unsupported, UsageError
from flopwatch.models.modes import Recompute, Sharding
from flopwatch.models.shapes import Shape
from flopwatch.predict.cost import sum_by_name
from flopwatch.predict.job import Job, make_job
from flopwatch.predict.machine import Machine
from flopwatch.predict.prediction import Prediction, predict
from flopwatch.predict.stacks import Stack

RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
SHARDINGS: tuple[Sharding, ...] = ("ddp", "grad-op-shard", "full-shard", "hybrid-shard")
TOKENS_PER_PARAMETER = 20
"""That a model is usually trained on, where nobody says how many."""
LARGEST_MICRO_BATCH = 2**16
"""Texts of a device at a time: no memory holds more."""
HOUR_S, DAY_S = 3600.0, 86400.0
Axis = Literal["shard", "checkpoint", "micro_batch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What is to be trained, on what."""

    shape: Shape
    tokens: int
    ranks: int
    machine: Machine
    stack: Stack
    batch_tokens: float
    precision: str
    optimizer: str = "adamw"
    budget_tokens: float | None = None
    """To train on; None: TOKENS_PER_PARAMETER of them for each parameter."""
    price: float | None = None
    """Of a device for an hour, in any currency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loser:
    """The best of those that differ from the winner in one respect."""

    axis: Axis
    value: str
    best: Prediction | None
    """None: none of them fits."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    wish: Wish
    best: tuple[Prediction, ...]
    """The fastest first."""
    losers: tuple[Loser, ...]
    tried: int
    fitting: int
    batch: int
    """Texts of a step."""

    @property
    def budget_tokens(self) -> float:
        parameters = self.best[0].job.parameters
        return self.wish.budget_tokens or float(TOKENS_PER_PARAMETER * parameters)

    def find_time_s(self, prediction: Prediction) -> float:
        """To train on all tokens of the budget."""
        return self.budget_tokens / prediction.tokens_per_s

    def find_device_hours(self, prediction: Prediction) -> float:
        return self.find_time_s(prediction) * prediction.job.ranks / HOUR_S

    def find_cost(self, prediction: Prediction) -> float | None:
        """In the currency of the price."""
        price = self.wish.price
        return None if price is None else price * self.find_device_hours(prediction)


def make_plan(wish: Wish, shown: int = 5) -> Plan:
    if wish.budget_tokens is not None and wish.budget_tokens < wish.batch_tokens:
        raise UsageError(
            f"a step of {wish.batch_tokens:,.0f} tokens is more than the {wish.budget_tokens:,.0f} "
            "to train on; choose a smaller batch, or train on more"
        )
    share = _share_batch(wish)
    tried = list(_try_all(wish, share))
    fitting = sorted(
        (each for each in tried if each.memory.fits), key=lambda each: -each.tokens_per_s
    )
    if not fitting:
        raise UsageError(_describe_misfit(wish, tried))
    return Plan(
        wish=wish,
        best=tuple(fitting[:shown]),
        losers=tuple(_list_losers(fitting[0], tried)),
        tried=len(tried),
        fitting=len(fitting),
        batch=share * wish.ranks,
    )


def _share_batch(wish: Wish) -> int:
    """Texts of a device in a step: as many as come nearest to the global batch."""
    if wish.machine.memory_bytes is None:
        raise UsageError(
            f"how much memory {wish.machine.name} has is not known, and so not what fits; choose a "
            "device that says, as A100-80GB does"
        )
    return max(1, round(wish.batch_tokens / (wish.tokens * wish.ranks)))


def _try_all(wish: Wish, share: int) -> Iterator[Prediction]:
    most = min(share, LARGEST_MICRO_BATCH)
    divisors = [number for number in range(1, most + 1) if share % number == 0]
    shardings: Sequence[Sharding] = SHARDINGS if wish.ranks > 1 else ("plain",)
    for sharding, recompute in product(shardings, RECOMPUTES):
        for micro_batch in divisors:
            job = make_job(
                wish.shape,
                tokens=wish.tokens,
                micro_batch=micro_batch,
                accumulation=share // micro_batch,
                ranks=wish.ranks,
                sharding=sharding,
                recompute=recompute,
                precision=wish.precision,
                optimizer=wish.optimizer,
            )
            try:
                prediction = predict(job, wish.machine, wish.stack)
            except Unsupported:  # so few ranks cannot be divided in two ways
                break
            yield prediction
            if not prediction.memory.fits:  # nor do larger ones
                break


def _describe_misfit(wish: Wish, tried: Sequence[Prediction]) -> str:
    least = min(tried, key=lambda each: each.memory.total_bytes)
    gib = 2**30
    needed, room = least.memory.total_bytes / gib, (wish.machine.memory_bytes or 0) / gib
    return (
        f"nothing fits: the smallest configuration needs {needed:.0f} GiB on each of {wish.ranks} "
        f"devices that have {room:.0f} GiB; take more or larger devices, or a smaller model"
    )


def _list_losers(winner: Prediction, tried: Sequence[Prediction]) -> Iterator[Loser]:
    """For each value of each axis that is not the winner's, the best with it."""
    values: dict[Axis, list[str]] = {
        "shard": [value for value in SHARDINGS if value != winner.job.sharding],
        "checkpoint": [value for value in RECOMPUTES if value != winner.job.recompute],
    }
    for axis, others in values.items():
        for value in others if winner.job.ranks > 1 or axis != "shard" else []:
            alike = [each for each in tried if _read(each.job, axis) == value]
            if alike:
                yield _judge(axis, value, alike, winner)
    for name, alike in _list_micro_batches(winner, tried).items():
        yield _judge("micro_batch", name, alike, winner)


def _list_micro_batches(
    winner: Prediction, tried: Sequence[Prediction]
) -> dict[str, list[Prediction]]:
    """The next smaller and the next larger one, with all else as the winner has it."""
    alike = [
        each
        for each in tried
        if all(_read(each.job, axis) == _read(winner.job, axis) for axis in ("shard", "checkpoint"))
    ]
    smaller = [each for each in alike if each.job.micro_batch < winner.job.micro_batch]
    larger = [each for each in alike if each.job.micro_batch > winner.job.micro_batch]
    near = [*smaller[-1:], *larger[:1]]
    return {str(each.job.micro_batch): [each] for each in near}


def _read(job: Job, axis: Axis) -> str:
    return str({"shard": job.sharding, "checkpoint": job.recompute}.get(axis, job.micro_batch))


def _judge(axis: Axis, value: str, alike: Sequence[Prediction], winner: Prediction) -> Loser:
    fitting = [each for each in alike if each.memory.fits]
    if not fitting:
        least = min(alike, key=lambda each: each.memory.total_bytes).memory
        most = max(least.parts.items(), key=lambda part: part[1])
        reason = (
            f"does not fit: {least.total_bytes / 2**30:.0f} GiB at the least, of which "
            f"{most[1] / 2**30:.0f} {most[0]}"
        )
        return Loser(axis=axis, value=value, best=None, reason=reason)
    best = max(fitting, key=lambda each: each.tokens_per_s)
    return Loser(axis=axis, value=value, best=best, reason=_compare(best, winner))


def _compare(loser: Prediction, winner: Prediction) -> str:
    """What takes longer, for each token: the part that differs most."""
    mine, best = (
        {
            name: time_s / each.job.step_tokens
            for name, time_s in sum_by_name(each.cost.parts).items()
        }
        for each in (loser, winner)
    )
    slower = {name: mine[name] - best.get(name, 0.0) for name in mine}
    name = max(slower, key=lambda part: slower[part])
    whole = winner.cost.step_s / winner.job.step_tokens
    batch = f"micro-batch {loser.job.micro_batch}"
    if slower[name] <= 0.001 * whole:
        return f"as fast, at {batch}"
    return f"{100 * slower[name] / whole:.1f} % of a step more for {name}, at {batch}"
