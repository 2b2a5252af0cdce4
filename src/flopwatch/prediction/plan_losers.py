"""What each of the other configurations loses against the best of a plan, and on what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flopwatch.errors import Unsupported
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import GIB
from flopwatch.prediction.plan_search import Choice, Searched
from flopwatch.prediction.predictions import Prediction, find_pressure, predict

if TYPE_CHECKING:
    from flopwatch.prediction.job_arrays import Array
    from flopwatch.prediction.plan_search import Places

Axis = Literal[
    "tensor", "sequence", "pipeline", "virtual_stages", "schedule", "context", "expert", "sharding",
    "recompute", "micro_batch",
]  # fmt: skip
FIELDS: Mapping[Axis, str] = {
    "tensor": "tensor",
    "sequence": "is_sequence",
    "pipeline": "pipeline",
    "virtual_stages": "virtual_stages",
    "schedule": "schedule",
    "context": "context",
    "expert": "expert",
    "sharding": "sharding",
    "recompute": "recompute",
}
"""What a configuration calls each axis but the micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loser:
    """The best of those that differ from the winner in one respect."""

    axis: Axis
    value: str
    best: Prediction | None
    """None: none of them fits."""
    reason: str

    @property
    def configuration(self) -> str | None:
        """Of the best, in words."""
        return describe_choice(self.best.job) if self.best else None


def describe_choice(job: TrainingJob) -> str:
    """
    >>> from flopwatch.jobs.parallelism import Parallelism
    >>> split = Parallelism(data=8, tensor=2, sequence=True, sharding="zero1")
    >>> describe_choice(TrainingJob("7b", 2048, parallelism=split))
    'tensor 2 with sequence, data 8, sharding zero1, recompute none, micro-batch 1'
    """
    split = job.parallelism
    more = {
        "tensor": " with sequence" if split.sequence else "",
        "pipeline": f" ({split.schedule}"
        + (f", {split.virtual_stages} virtual stages)" if split.virtual_stages > 1 else ")"),
    }
    divided = [
        f"{name} {getattr(split, name)}{more.get(name, '')}"
        for name in ("tensor", "pipeline", "context", "expert", "data")
        if getattr(split, name) > 1
    ]
    rest = [f"sharding {job.sharding}", f"recompute {job.recompute}"]
    return ", ".join([*divided, *rest, f"micro-batch {job.micro_batch}"])


def predict_choice(searched: Searched, choice: Choice) -> Prediction | None:
    """None where it does not fit, and not just so: of some jobs, memory is known more exactly than
    the search knows it."""
    try:
        found = predict(choice.apply(searched.job), searched.machine, searched.stack)
    except Unsupported:  # so few ranks cannot be divided in two ways
        return None
    return found if found.memory.fits and not find_pressure(found.memory) else None


def predict_place(searched: Searched, place: int) -> Prediction | None:
    return predict_choice(searched, searched.pick(place))


def list_losers(
    searched: Searched, order: Places, place: int, winner: Prediction
) -> Iterator[Loser]:
    """For each word of each axis that is not the winner's, the best with it; of numbers, the least,
    the next smaller and the next larger one; of micro-batches, these two with all else as the
    winner has it."""
    import numpy as np

    chosen = searched.pick(place)
    speeds = np.zeros(len(searched))
    speeds[order] = searched.tokens_per_s[order]
    for axis, field in FIELDS.items():
        own = chosen.recompute if field == "recompute" else getattr(chosen.split, field)
        for value in _list_rivals(searched.list_values(field), own):
            places = searched.find_places(field, value)
            yield _judge(searched, axis, value, places, speeds, winner)
    alike = np.flatnonzero(
        (searched.split_places == searched.split_places[place])
        & (searched.recompute_places == searched.recompute_places[place])
    )
    sizes = searched.micro_batch[alike]
    for near in (alike[sizes < chosen.micro_batch][-1:], alike[sizes > chosen.micro_batch][:1]):
        if len(near):
            size = int(searched.micro_batch[near[0]])
            yield _judge(searched, "micro_batch", size, near, speeds, winner)


def _list_rivals(values: Sequence[object], own: object) -> list[object]:
    """
    >>> _list_rivals([1, 2, 4, 8, 16], 8), _list_rivals(["none", "full"], "none")
    ([1, 4, 16], ['full'])
    """
    numbers = sorted(value for value in values if isinstance(value, int))
    if not isinstance(own, int) or isinstance(own, bool):
        return [value for value in values if value != own]
    place = numbers.index(own)
    near = [*numbers[:1], *numbers[max(place - 1, 0) : place + 2]]
    return [value for value in dict.fromkeys(near) if value != own]


def _judge(
    searched: Searched,
    axis: Axis,
    value: object,
    places: Places,
    speeds: Array,
    winner: Prediction,
) -> Loser:
    """`speeds` are 0 where something does not fit."""
    shown = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
    best = int(places[speeds[places].argmax()])
    found = predict_place(searched, best) if speeds[best] > 0 else None
    if found is not None:
        return Loser(axis=axis, value=str(shown), best=found, reason=_compare(found, winner))
    least = int(places[searched.memory_bytes[places].argmin()])
    memory = predict(
        searched.pick(least).apply(searched.job), searched.machine, searched.stack
    ).memory
    most = max(memory.parts.items(), key=lambda part: part[1])
    reason = (
        f"does not fit: {memory.total_bytes / GIB:.0f} GiB at the least, of which "
        f"{most[1] / GIB:.0f} {most[0]}"
    )
    return Loser(axis=axis, value=str(shown), best=None, reason=reason)


def _compare(loser: Prediction, winner: Prediction) -> str:
    """What takes longer, for each token: the part that differs most."""
    mine, best = (
        {name: part.time_s / each.job.tokens_per_step for name, part in each.cost.by_name.items()}
        for each in (loser, winner)
    )
    slower = {name: mine[name] - best.get(name, 0.0) for name in mine}
    name = max(slower, key=lambda part: slower[part])
    whole = winner.cost.step_s / winner.job.tokens_per_step
    if slower[name] <= 0.001 * whole:
        return "as fast"
    return f"{100 * slower[name] / whole:.1f} % of a step more for {name}"
