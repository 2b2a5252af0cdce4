"""How sensitive a plan is: what its best configuration would reach, and which one would be best, if
something is not as it was assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from flopwatch.jobs.training_job import RECOMPUTES
from flopwatch.prediction.hardware import UNKNOWN_SHARE, Machine
from flopwatch.prediction.plan_losers import predict_choice, predict_place
from flopwatch.prediction.plan_search import SPARE, Choice, Searched, Split, search
from flopwatch.prediction.predictions import Prediction

if TYPE_CHECKING:
    from flopwatch.prediction.plan_search import Places

What = Literal[
    "network-halved", "network-doubled", "memory-smaller", "matmuls-slower", "matmuls-faster",
    "batch-halved", "batch-doubled",
]  # fmt: skip


def _scale_network(factor: float) -> Callable[[Machine], Machine]:
    def change(machine: Machine) -> Machine:
        network = machine.network_bytes_per_s
        return replace(machine, network_bytes_per_s=network and factor * network)

    return change


def _scale_matmuls(factor: float) -> Callable[[Machine], Machine]:
    def change(machine: Machine) -> Machine:
        shares = {
            dtype: factor * machine.sustained.get(dtype, UNKNOWN_SHARE)
            for dtype in machine.peak_flops_per_s
        }
        return replace(machine, sustained=shares)

    return change


def _scale_memory(factor: float) -> Callable[[Machine], Machine]:
    return lambda machine: replace(machine, memory_bytes=factor * (machine.memory_bytes or 0.0))


MACHINES: Mapping[What, tuple[Callable[[Machine], Machine], float]] = {
    "network-halved": (_scale_network(0.5), 1.0),
    "network-doubled": (_scale_network(2.0), 2.0),
    "memory-smaller": (_scale_memory(0.9), 1.0),
    "matmuls-slower": (_scale_matmuls(0.9), 1.0),
    "matmuls-faster": (_scale_matmuls(1.1), 1.1),
}
"""How the hardware would be, and how many times as fast that could make any configuration."""
BATCHES: Mapping[What, float] = {"batch-halved": 0.5, "batch-doubled": 2.0}
LIKELY = 0.5
"""Of the best one's speed: what is slower does not become the best with another batch."""
MOST_TRIED = 50
"""Of those that fit as the search estimates memory: it is known more exactly of some jobs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What follows if one thing is otherwise."""

    what: What
    chosen: Prediction | None
    """Of the plan's best configuration; None: it does not fit, or cannot have such a batch."""
    best: Prediction | None
    """Of the configuration that is best then; None: none fits."""
    is_same: bool
    """Whether that is still the plan's best, but for its micro-batches where the batch changes."""

    @property
    def gain(self) -> float | None:
        """Of choosing anew, relatively."""
        if self.chosen is None or self.best is None:
            return None
        return self.best.tokens_per_s / self.chosen.tokens_per_s - 1


def list_changes(
    searched: Searched, order: Places, place: int, global_batch_tokens: float
) -> tuple[Change, ...]:
    """`order` are the configurations that fit, the fastest first, and `place` is the best."""
    chosen = searched.pick(place)
    has_network = (
        searched.job.ranks > searched.machine.per_node
        and searched.machine.network_bytes_per_s is not None
    )
    changes = [
        _change_machine(searched, order, chosen, what)
        for what in MACHINES
        if has_network or not what.startswith("network")
    ]
    splits = _list_likely(searched, order)
    for what, factor in BATCHES.items():
        tokens = factor * global_batch_tokens
        if tokens >= searched.job.seq_len:
            tried = search(searched.job, searched.machine, searched.stack, tokens, splits)
            changes.append(_change_batch(tried, chosen, what))
    return tuple(changes)


def _change_machine(searched: Searched, order: Places, chosen: Choice, what: What) -> Change:
    change, most = MACHINES[what]
    machine = change(searched.machine)
    own = predict_choice(replace(searched, machine=machine), chosen)
    if own is None:  # with less memory, all else is as fast as before
        limit = SPARE * (machine.memory_bytes or 0.0)
        candidates = order[searched.memory_bytes[order] <= limit][:MOST_TRIED]
    else:  # what cannot become as fast need not be computed
        speeds = searched.tokens_per_s[order]
        candidates = order[speeds >= (1 - 1e-9) * own.tokens_per_s / most]
    return _choose(searched.take(candidates, machine), chosen, own, what)


def _list_likely(searched: Searched, order: Places) -> Sequence[Split]:
    """Splits that another batch could make the best."""
    import numpy as np

    speeds = searched.tokens_per_s[order]
    numbers = np.unique(searched.split_places[order[speeds >= LIKELY * speeds[0]]])
    return [searched.splits[number] for number in numbers]


def _change_batch(tried: Searched, chosen: Choice, what: What) -> Change:
    import numpy as np

    own = None
    if chosen.split in tried.splits:
        alike = (tried.split_places == tried.splits.index(chosen.split)) & (
            tried.recompute_places == RECOMPUTES.index(chosen.recompute)
        )
        own = find_best(tried, _keep(tried.sort_fitting(), np.flatnonzero(alike)))
    return _choose(tried, chosen, own, what)


def _keep(order: Places, kept: Places) -> Places:
    import numpy as np

    return order[np.isin(order, kept)]


def _choose(tried: Searched, chosen: Choice, own: Prediction | None, what: What) -> Change:
    best = find_best(tried, tried.sort_fitting())
    names = ("parallelism", "recompute", *(() if what in BATCHES else ("micro_batch",)))
    asked = chosen.apply(tried.job)
    is_same = best is not None and all(
        getattr(best.job, name) == getattr(asked, name) for name in names
    )
    return Change(what=what, chosen=own, best=best, is_same=is_same)


def find_best(searched: Searched, order: Places) -> Prediction | None:
    """The first that fits when it is predicted by itself."""
    found = (predict_place(searched, int(place)) for place in order[:MOST_TRIED])
    return next((each for each in found if each is not None), None)
