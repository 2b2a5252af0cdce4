"""The fastest way to train a model on given hardware: which of all configurations fit, and what
each of the others loses.

Searched are how devices share the model, what is computed again, and the micro-batch. Accumulation
follows from it: as many as come nearest to a device's share of the global batch, within 5 % of it.
Otherwise 61 texts, say, could be computed one at a time or all at once, and nothing in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.variants import Recompute, Sharding
from flopwatch.prediction.cost import sum_by_name
from flopwatch.prediction.cost_job import Job, make_job
from flopwatch.prediction.hardware import GIB, Machine
from flopwatch.prediction.memory_need import find_pressure
from flopwatch.prediction.predictions import Prediction, predict
from flopwatch.prediction.software_stacks import Stack

RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
SHARDINGS: tuple[Sharding, ...] = ("ddp", "grad-op-shard", "full-shard", "hybrid-shard")
TOKENS_PER_PARAMETER = 20
"""That a model is usually trained on, where nobody says how many."""
NEAR = 0.05
"""By how much a batch may differ from what was asked for."""
FINE = 16
"""Micro-batches above are tried in steps of a sixteenth to an eighth of them."""
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
    fitting = sorted(filter(_has_room, tried), key=lambda each: -each.tokens_per_s)
    if not fitting:
        raise UsageError(_describe_misfit(wish, tried))
    return Plan(
        wish=wish,
        best=tuple(fitting[:shown]),
        losers=tuple(_list_losers(fitting[0], tried)),
        tried=len(tried),
        fitting=len(fitting),
    )


def _share_batch(wish: Wish) -> int:
    """Texts of a device in a step: as many as come nearest to the global batch."""
    if wish.machine.memory_bytes is None:
        raise UsageError(
            f"how much memory {wish.machine.name} has is not known, and so not what fits; choose a "
            "device that says, as A100-80GB does"
        )
    return max(1, round(wish.batch_tokens / (wish.tokens * wish.ranks)))


def _has_room(prediction: Prediction) -> bool:
    """Whether it fits, and not just so: what memory it takes is predicted, too."""
    return bool(prediction.memory.fits) and not find_pressure(prediction.memory)


def list_micro_batches(share: int) -> Iterator[int]:
    """Those whose multiples come near to a device's share, finely as long as they are small.

    >>> list(list_micro_batches(61))[-5:], list(list_micro_batches(7))
    ([31, 32, 58, 60, 61], [1, 7])
    """
    micro_batch = 1
    while micro_batch < share:
        batch = round(share / micro_batch) * micro_batch
        if abs(batch - share) <= NEAR * share:
            yield micro_batch
        micro_batch += max(1, 2 ** (micro_batch.bit_length() - FINE.bit_length()))
    yield share


def _try_all(wish: Wish, share: int) -> Iterator[Prediction]:
    shardings: Sequence[Sharding] = SHARDINGS if wish.ranks > 1 else ("plain",)
    for sharding, recompute in product(shardings, RECOMPUTES):
        for micro_batch in list_micro_batches(share):
            job = make_job(
                wish.shape,
                tokens=wish.tokens,
                micro_batch=micro_batch,
                accumulation=round(share / micro_batch),
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
            if not _has_room(prediction):  # nor have larger ones
                break


def _describe_misfit(wish: Wish, tried: Sequence[Prediction]) -> str:
    least = min(tried, key=lambda each: each.memory.total_bytes)
    needed, room = least.memory.total_bytes / GIB, (wish.machine.memory_bytes or 0) / GIB
    devices = f"each of {wish.ranks} devices" if wish.ranks > 1 else "one device"
    return (
        f"nothing fits: the smallest configuration needs {needed:.1f} GiB on {devices} with "
        f"{room:.1f} GiB; take more or larger devices, or a smaller model"
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
