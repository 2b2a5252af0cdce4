"""The fastest way to train a model on given hardware: which of all configurations fit, and what
each of the others loses. What is searched, `plan_search` has; what global batches are taken,
`batch_shares`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.training_job import Printed, TrainingJob
from flopwatch.prediction.cost import require_predictable
from flopwatch.prediction.hardware import GIB, Machine
from flopwatch.prediction.plan_search import Searched, search
from flopwatch.prediction.predictions import Prediction, find_pressure, predict
from flopwatch.prediction.software_stacks import Stack

if TYPE_CHECKING:
    import numpy as np

    from flopwatch.prediction.job_arrays import Array

    Places = np.ndarray[Any, np.dtype[np.intp]]

TOKENS_PER_PARAMETER = 20
"""That a model is usually trained on, where you do not say how many."""
SPARE = 0.95
"""Of the memory: what memory a job takes is predicted, too."""
HOUR_S, DAY_S = 3600.0, 86400.0
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
    searched: Searched

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
            f"{job.tokens_per_step:,} tokens, which {job.parallelism.data} x {job.micro_batch} "
            f"divides: "
            f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'} than the "
            f"{self.global_batch_tokens:,.0f} asked for"
        )

    def _describe(self, prediction: Prediction) -> dict[str, Any]:
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
                f"  {each.tokens_per_s:12,.0f} tokens/s  {self.find_time_s(each) / DAY_S:8.1f} days"
                f"  {describe_choice(each.job)}, grad-accum {each.job.grad_accum}"
                for each in self.best
            ),
            *([f"  {self.remark}"] if self.remark else []),
            *(f"  not {each.axis} {each.value}: {each.reason}" for each in self.losers),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from flopwatch.output.notebook import render_plan

        return render_plan(self)


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
    """Of the job's model, sequence length, precision, optimizer and ranks; all else is searched,
    but for the kinds of parallelism that it has. Without `train_tokens`, it trains on
    TOKENS_PER_PARAMETER for each parameter."""
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
    searched = search(job, machine, stack, global_batch_tokens)
    if not len(searched):
        raise UsageError(
            f"{job.ranks} ranks cannot be divided so; leave out one of --tp, --pp, --cp and --ep"
        )
    order = _sort(searched)
    best = list(_list_best(searched, order, shown))
    if not best:
        raise UsageError(_describe_misfit(searched))
    return Plan(
        job=job,
        machine=machine,
        stack=stack,
        global_batch_tokens=global_batch_tokens,
        price=price,
        train_tokens=train_tokens or float(TOKENS_PER_PARAMETER * job.parameters),
        best=tuple(prediction for _, prediction in best),
        losers=tuple(_list_losers(searched, order, *best[0])),
        tried=len(searched),
        fitting=len(order),
        searched=searched,
    )


def _sort(searched: Searched) -> Places:
    """Those that fit, the fastest first."""
    import numpy as np

    fits = searched.memory_bytes <= SPARE * (searched.machine.memory_bytes or np.inf)
    places = np.flatnonzero(fits & (searched.tokens_per_s > 0))
    return places[np.argsort(-searched.tokens_per_s[places], kind="stable")]


def _predict(searched: Searched, place: int) -> Prediction | None:
    """None where it does not fit, and not just so: of some jobs, memory is known more exactly than
    the search knows it."""
    try:
        found = predict(searched.pick(place).apply(searched.job), searched.machine, searched.stack)
    except Unsupported:  # so few ranks cannot be divided in two ways
        return None
    return found if found.memory.fits and not find_pressure(found.memory) else None


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
        found = _predict(searched, place)
        if found is not None:
            seen.add(key)
            yield place, found
        if len(seen) == shown:
            return


def _describe_misfit(searched: Searched) -> str:
    least = int(searched.memory_bytes.argmin())
    needed, available = (
        size / GIB for size in (searched.memory_bytes[least], searched.machine.memory_bytes or 0.0)
    )
    ranks = searched.job.ranks
    devices = f"each of {ranks} devices" if ranks > 1 else "one device"
    return (
        f"nothing fits: the smallest configuration needs {needed:.1f} GiB on {devices} with "
        f"{available:.1f} GiB; take more or larger devices, or a smaller model"
    )


def _list_losers(
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
    found = _predict(searched, best) if speeds[best] > 0 else None
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
        return f"as fast, with {describe_choice(loser.job)}"
    return f"{100 * slower[name] / whole:.1f} % of a step more for {name}, with " + (
        describe_choice(loser.job)
    )
