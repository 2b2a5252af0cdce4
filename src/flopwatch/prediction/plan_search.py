"""All ways to divide a training job over devices, judged at once: what each holds, and how long its
steps take.

Considered are

    tensor parallelism      powers of two that divide the heads, up to four nodes, with and
                            without sequence parallelism
    pipeline parallelism    stages that divide the layers, or with embedding and head as two more,
                            or powers of two whose last stage has fewer layers;
                            virtual stages that divide a stage's layers, where micro-batches are a
                            multiple of the stages; 1F1B, GPipe and zero-bubble schedules
    context parallelism     powers of two, with at least SHORTEST tokens of a sequence for each rank
    expert parallelism      divisors of the experts
    data parallelism        all devices that are left, and every kind of sharding; with a pipeline
                            none of those that gather in every micro-batch
    recomputation           none, selective, full
    micro-batches           whose multiples come near to a rank's share of the batch

What the job itself has of them is kept. Left out is what would need a global batch that is not near
to the one asked for, unless no configuration comes near: 1,024 data-parallel ranks have at least
1,024 sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flopwatch.jobs.parallelism import Parallelism, Sharding
from flopwatch.jobs.training_job import RECOMPUTES, Recompute, TrainingJob
from flopwatch.prediction.batch_shares import NEAR, list_shares
from flopwatch.prediction.cost import estimate_steps
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.job_arrays import (
    GATHERS,
    JobArrays,
    Placed,
    find_shard_group,
    make_arrays,
)
from flopwatch.prediction.software_stacks import Stack
from flopwatch.prediction.stage_memory import estimate_stage_memory

if TYPE_CHECKING:
    import numpy as np

    from flopwatch.prediction.job_arrays import Array

    Places = np.ndarray[Any, np.dtype[np.intp]]

SHARDINGS: tuple[Sharding, ...] = ("ddp", "zero1", "zero2", "full", "hybrid")
PIPELINED: tuple[Sharding, ...] = ("ddp", "zero1")
"""With a pipeline, whose micro-batches would each gather all of a stage."""
SCHEDULES = ("1f1b", "gpipe", "zero-bubble")
SPARE = 0.95
"""Of the memory: what memory a job takes is predicted, too."""
MOST_NODES = 4
"""That tensor parallelism reaches."""
SHORTEST = 1024
"""Tokens of a context-parallel rank."""
MOST_STAGES = 128
AT_ONCE = 8192
"""Configurations whose columns a processor's cache holds."""


class Split(NamedTuple):
    tensor: int
    is_sequence: bool
    pipeline: int
    virtual_stages: int
    schedule: str
    context: int
    expert: int
    data: int
    sharding: Sharding
    shard_group: int


class Choice(NamedTuple):
    """One configuration."""

    split: Split
    recompute: Recompute
    micro_batch: int
    grad_accum: int

    def apply(self, job: TrainingJob) -> TrainingJob:
        split = self.split
        return replace(
            job,
            micro_batch=self.micro_batch,
            grad_accum=self.grad_accum,
            recompute=self.recompute,
            parallelism=replace(
                job.parallelism,
                data=split.data,
                tensor=split.tensor,
                sequence=split.is_sequence,
                pipeline=split.pipeline,
                virtual_stages=split.virtual_stages,
                schedule=split.schedule,
                context=split.context,
                expert=split.expert,
                sharding=split.sharding,
            ),
        )


@dataclass(frozen=True)
class Searched:
    """All configurations of a job on a machine, a number each."""

    job: TrainingJob
    machine: Machine
    stack: Stack
    splits: Sequence[Split]
    split_places: Places
    """Of each configuration, the number of its split,"""
    recompute_places: Places
    """of its recomputation,"""
    micro_batch: Places
    grad_accum: Places
    considered: int
    """How many there are with those whose micro-batches are too large in any case."""

    def __len__(self) -> int:
        return len(self.split_places)

    def pick(self, place: int) -> Choice:
        return Choice(
            self.splits[int(self.split_places[place])],
            RECOMPUTES[int(self.recompute_places[place])],
            int(self.micro_batch[place]),
            int(self.grad_accum[place]),
        )

    def list_values(self, name: str) -> list[object]:
        """That a field of `Split`, or the recomputation, has in any configuration."""
        if name == "recompute":
            return list(RECOMPUTES)
        return list(dict.fromkeys(getattr(split, name) for split in self.splits))

    def find_places(self, name: str, value: object) -> Places:
        """The configurations in which it has this value."""
        import numpy as np

        if name == "recompute":
            names: Sequence[object] = RECOMPUTES
            return np.flatnonzero(self.recompute_places == names.index(value))
        has_value = np.array([getattr(split, name) == value for split in self.splits])
        return np.flatnonzero(has_value[self.split_places])

    @cached_property
    def jobs(self) -> JobArrays:
        return _make_columns(self)

    @cached_property
    def memory_bytes(self) -> Array:
        import numpy as np

        def add(jobs: JobArrays) -> Array:
            total: Any = 0.0
            for size in estimate_stage_memory(jobs).values():
                total = total + size
            return cast("Array", total)

        return self._compute(add, np.arange(len(self)))

    @cached_property
    def tokens_per_s(self) -> Array:
        """Of those that fit; 0 elsewhere."""
        import numpy as np

        def divide(jobs: JobArrays) -> Array:
            tokens = jobs.micro_batch * jobs.grad_accum * jobs.data * jobs.seq_len
            return tokens / estimate_steps(jobs, self.stack.parameters)

        fitting = np.flatnonzero(self.memory_bytes <= (self.machine.memory_bytes or np.inf))
        return self._compute(divide, fitting)

    def _compute(self, function: Callable[[JobArrays], Array], places: Places) -> Array:
        """Of these, some at a time; 0 elsewhere."""
        import numpy as np

        found = np.zeros(len(self))
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            found[some] = function(_take(self.jobs, some))
        return found

    def sort_fitting(self) -> Places:
        """Those that fit with some memory to spare, the fastest first."""
        import numpy as np

        limit = SPARE * (self.machine.memory_bytes or np.inf)
        places = np.flatnonzero((self.memory_bytes <= limit) & (self.tokens_per_s > 0))
        return places[np.argsort(-self.tokens_per_s[places], kind="stable")]

    def take(self, places: Places, machine: Machine) -> Searched:
        """Some of them, on a machine that they take as much memory of."""
        taken = replace(
            self,
            machine=machine,
            split_places=self.split_places[places],
            recompute_places=self.recompute_places[places],
            micro_batch=self.micro_batch[places],
            grad_accum=self.grad_accum[places],
        )
        taken.__dict__["memory_bytes"] = self.memory_bytes[places]  # which was computed before
        return taken


def search(
    job: TrainingJob,
    machine: Machine,
    stack: Stack,
    global_batch_tokens: float,
    splits: Sequence[Split] | None = None,
) -> Searched:
    """`splits` are those to consider; None: all."""
    import numpy as np

    splits = list(_list_splits(job, machine)) if splits is None else splits
    numbers, shares = [], []
    for number in _choose_near(splits, global_batch_tokens / job.seq_len):
        split = splits[number]
        found = _list_split_shares(global_batch_tokens / (job.seq_len * split.data), split)
        if found:
            numbers.append(number)
            shares.append(found)
    # Larger micro-batches hold more: where the smallest does not fit, none does.
    kinds = len(RECOMPUTES)
    smallest = Searched(
        job,
        machine,
        stack,
        splits,
        split_places=np.repeat(np.array(numbers, dtype=np.intp), kinds),
        recompute_places=np.tile(np.arange(kinds), len(numbers)),
        micro_batch=np.repeat(np.array([each[0][0] for each in shares], dtype=np.intp), kinds),
        grad_accum=np.repeat(np.array([each[0][1] for each in shares], dtype=np.intp), kinds),
        considered=kinds * sum(map(len, shares)),
    )
    if not numbers:
        return smallest
    fits = smallest.memory_bytes <= (machine.memory_bytes or np.inf)
    counts = np.where(fits, np.repeat([len(each) for each in shares], kinds), 1)
    flat = np.array([pair for each in shares for pair in each], dtype=np.intp)
    starts = np.repeat(np.cumsum([0, *(len(each) for each in shares[:-1])]), kinds)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = flat[np.repeat(starts, counts) + within]
    return replace(
        smallest,
        split_places=np.repeat(smallest.split_places, counts),
        recompute_places=np.repeat(smallest.recompute_places, counts),
        micro_batch=chosen[:, 0],
        grad_accum=chosen[:, 1],
    )


def _list_split_shares(asked: float, split: Split) -> list[tuple[int, int]]:
    """Interleaved schedules pass as many micro-batches at a time as there are stages."""
    multiple = split.pipeline if split.virtual_stages > 1 else 1
    return [pair for pair in _list_shares(asked) if pair[1] % multiple == 0]


def _choose_near(splits: Sequence[Split], sequences: float) -> list[int]:
    """Numbers of the splits whose ranks can have a global batch near to so many sequences; where
    there are none, of those that come nearest."""
    apart = {data: _find_distance(sequences / data) for data in {split.data for split in splits}}
    limit = max(NEAR, min(apart.values(), default=NEAR)) + 1e-9
    return [number for number, split in enumerate(splits) if apart[split.data] <= limit]


def _find_distance(share: float) -> float:
    """By how much the nearest batch that ranks can have differs from their share, relatively.

    >>> _find_distance(0.5), _find_distance(15.3) < NEAR
    (1.0, True)
    """
    return min(
        (abs(size * times / share - 1) for size, times in _list_shares(share)), default=math.inf
    )


@lru_cache(maxsize=1024)
def _list_shares(asked: float) -> tuple[tuple[int, int], ...]:
    return tuple(list_shares(asked))


def _list_splits(job: TrainingJob, machine: Machine) -> Iterator[Split]:
    shape, ranks = job.shape, job.ranks
    most = MOST_NODES * machine.per_node
    for tensor in _list_powers(min(most, shape.heads, ranks), job.parallelism.tensor):
        if shape.heads % tensor or ranks % tensor:
            continue
        for pipeline in _list_stages(job, ranks // tensor):
            for context in _list_powers(max(1, job.seq_len // SHORTEST), job.parallelism.context):
                if (ranks // (tensor * pipeline)) % context:
                    continue
                data = ranks // (tensor * pipeline * context)
                yield from _list_ways(job, machine, tensor, pipeline, context, data)


def _list_powers(most: int, given: int) -> list[int]:
    """What is given, or powers of two."""
    if given > 1:
        return [given]
    return [1 << power for power in range(max(most, 1).bit_length()) if 1 << power <= most]


def _list_stages(job: TrainingJob, ranks: int) -> list[int]:
    given, layers = job.parallelism.pipeline, job.shape.layers
    if given > 1:
        return [given] if ranks % given == 0 else []
    most = min(layers, ranks, MOST_STAGES)
    return [
        stages
        for stages in range(1, most + 1)
        if ranks % stages == 0 and _can_share(layers, stages)
    ]


def _can_share(layers: int, stages: int) -> bool:
    """
    >>> [stages for stages in range(1, 33) if _can_share(61, stages)]
    [1, 2, 3, 4, 7, 8, 9, 16, 21]
    """
    if layers % stages == 0 or (layers + 2) % stages == 0:
        return True
    is_power = stages & (stages - 1) == 0
    return is_power and layers > -(-layers // stages) * (stages - 1)


def _list_ways(
    job: TrainingJob, machine: Machine, tensor: int, pipeline: int, context: int, data: int
) -> Iterator[Split]:
    experts = job.shape.experts or 1
    shardings: Sequence[Sharding] = PIPELINED if pipeline > 1 else SHARDINGS
    if data * context == 1:
        shardings = ("none",)
    for expert in range(1, min(experts, data * context) + 1):
        if experts % expert or (data * context) % expert:
            continue
        if job.parallelism.expert not in (1, expert):
            continue
        for sharding in shardings:
            split = Parallelism(
                data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert,
                sharding=sharding,
            )  # fmt: skip
            group = find_shard_group(replace(job, parallelism=split), machine)
            for is_sequence in (True, False) if tensor > 1 else (False,):
                for stages, schedule in _list_schedules(job, pipeline):
                    yield Split(
                        tensor, is_sequence, pipeline, stages, schedule, context, expert, data,
                        sharding, group,
                    )  # fmt: skip


def _list_schedules(job: TrainingJob, pipeline: int) -> list[tuple[int, str]]:
    if pipeline == 1:
        return [(1, "1f1b")]
    layers = job.shape.layers
    each = layers // pipeline if layers % pipeline == 0 else 1
    chunks = [(count, "interleaved") for count in range(2, each + 1) if each % count == 0]
    return [*((1, schedule) for schedule in SCHEDULES), *chunks]


OF_LINEARS = ("inputs", "outputs", "weight_layers", "split", "active", "copies")
"""Of `JobArrays`: a column for each linear layer that the model may have."""


SPLIT_COLUMNS: Mapping[str, Callable[[Split], float]] = {
    "tensor": lambda split: split.tensor,
    "is_sequence": lambda split: split.is_sequence,
    "pipeline": lambda split: split.pipeline,
    "virtual_stages": lambda split: split.virtual_stages,
    "is_zero_bubble": lambda split: split.schedule == "zero-bubble",
    "is_gpipe": lambda split: split.schedule == "gpipe",
    "context": lambda split: split.context,
    "expert": lambda split: split.expert,
    "data": lambda split: split.data,
    "is_none": lambda split: split.sharding == "none",
    "is_sharded": lambda split: split.sharding in GATHERS,
    "gathers": lambda split: GATHERS.get(split.sharding, 2),
    "is_zero1": lambda split: split.sharding == "zero1",
    "shard_group": lambda split: split.shard_group,
}
"""Of `JobArrays`: what a split says."""


def _make_columns(searched: Searched) -> JobArrays:
    """One job's arrays, with an entry for each configuration where they differ."""
    import numpy as np

    base = make_arrays([Placed(searched.job, searched.machine, searched.stack.habits)])
    real = base.active[0] > 0
    base = replace(base, **{name: getattr(base, name)[:, real] for name in OF_LINEARS})
    used, places = np.unique(searched.split_places, return_inverse=True)
    splits = [searched.splits[number] for number in used]
    columns = {
        name: np.array([read(split) for split in splits], dtype=float)[places]
        for name, read in SPLIT_COLUMNS.items()
    }
    return replace(
        base,
        **columns,
        micro_batch=searched.micro_batch.astype(float),
        grad_accum=searched.grad_accum.astype(float),
        is_full=(searched.recompute_places == RECOMPUTES.index("full")).astype(float),
        is_selective=(searched.recompute_places == RECOMPUTES.index("selective")).astype(float),
        scatters=np.maximum(columns["is_sequence"], base.scatters),
    )


def _take(jobs: JobArrays, places: Places) -> JobArrays:
    """Some of the entries, of all that differ."""
    values = {field.name: getattr(jobs, field.name) for field in fields(jobs)}
    return replace(
        jobs, **{name: value[places] for name, value in values.items() if len(value) > 1}
    )
