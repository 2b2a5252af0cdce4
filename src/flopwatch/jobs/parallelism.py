"""How ranks divide a training job: the batch, the model, and what each of them keeps.

Sharding is how the parameters are spread over data-parallel ranks:

    none      each rank has all of them; gradients are averaged when the backward pass is done
    ddp       the same by DistributedDataParallel, which averages during the backward pass
    zero1     the optimizer's state is divided
    zero2     gradients too; what was gathered in the forward pass stays until the backward pass
    full      parameters too (ZeRO-3, FSDP): blocks are gathered in both passes
    hybrid    full within groups of ranks, and each group has all parameters
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from flopwatch.errors import Unsupported, UsageError

Sharding = Literal["none", "ddp", "zero1", "zero2", "full", "hybrid"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
UNSHARDED: tuple[Sharding, ...] = ("none", "ddp")
"""Where each rank has all parameters."""
SHARDING_SPELLINGS: Mapping[str, Sharding] = {
    "plain": "none",
    "no_shard": "ddp",
    "grad-op": "zero2",
    "grad-op-shard": "zero2",
    "shard_grad_op": "zero2",
    "full-shard": "full",
    "full_shard": "full",
    "fsdp": "full",
    "zero3": "full",
    "hybrid-shard": "hybrid",
    "hybrid_shard": "hybrid",
}
"""What FSDP, DeepSpeed and published tables call them. NO_SHARD is ddp: FSDP averages gradients
during the backward pass then, as DistributedDataParallel does."""
CONTEXT_EXCHANGES = ("ring", "all-to-all")
"""How context-parallel ranks attend to each other's tokens: keys and values pass all ranks (ring
attention), or ranks swap tokens for heads and back (Ulysses)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The order in which a pipeline's ranks compute micro-batches."""

    torch_name: str
    """What torch.distributed.pipelining calls it."""
    virtual_stages: tuple[int, int]
    """The fewest and the most of a rank that torch runs it with."""
    is_v: bool = False
    """Whether rank r of p has the stages r and 2 p - 1 - r, so that the first rank has the last
    stage, too; else those that are r modulo p."""
    splits_backward: bool = False
    """Whether gradients of weights are computed later than those of activations."""
    keeps_all: bool = False
    """Whether all micro-batches go forward before the first goes back."""


MANY = 10**3
SCHEDULES: Mapping[str, Schedule] = {
    "1f1b": Schedule(torch_name="1F1B", virtual_stages=(1, 1)),
    "gpipe": Schedule(torch_name="GPipe", virtual_stages=(1, 1), keeps_all=True),
    "interleaved": Schedule(torch_name="Interleaved1F1B", virtual_stages=(2, MANY)),
    "looped-bfs": Schedule(torch_name="LoopedBFS", virtual_stages=(2, MANY), keeps_all=True),
    "zero-bubble": Schedule(
        torch_name="InterleavedZeroBubble", virtual_stages=(2, MANY), splits_backward=True
    ),
    "zbv": Schedule(
        torch_name="ZBVZeroBubble", virtual_stages=(2, 2), is_v=True, splits_backward=True
    ),
    "dualpipe-v": Schedule(
        torch_name="DualPipeV", virtual_stages=(2, 2), is_v=True, splits_backward=True
    ),
}
SCHEDULE_SPELLINGS: Mapping[str, str] = {
    **{schedule.torch_name.lower(): name for name, schedule in SCHEDULES.items()},
    "zb-v": "zbv",
    "dualpipe": "dualpipe-v",
    "zero_bubble": "zero-bubble",
}
MOST_RANKS = 10**9


def find_schedule(name: str) -> str:
    """
    >>> find_schedule("Interleaved1F1B"), find_schedule("ZBVZeroBubble")
    ('interleaved', 'zbv')
    """
    lower = name.lower()
    found = lower if lower in SCHEDULES else SCHEDULE_SPELLINGS.get(lower)
    if found is None:
        raise UsageError(
            f"there is no pipeline schedule {name[:40]!r}; choose one of {', '.join(SCHEDULES)}"
        )
    return found


def find_sharding(name: str) -> Sharding:
    """
    >>> find_sharding("FULL_SHARD"), find_sharding("zero2")
    ('full', 'zero2')
    """
    lower = name.lower()
    for sharding in SHARDINGS:
        if lower == sharding:
            return sharding
    if lower not in SHARDING_SPELLINGS:
        raise UsageError(
            f"there is no sharding {name[:40]!r}; choose one of {', '.join(SHARDINGS)}"
        )
    return SHARDING_SPELLINGS[lower]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """
    >>> Parallelism(data=8, sharding="fsdp").sharding
    'full'
    """

    data: int = 1
    tensor: int = 1
    sequence: bool = False
    """Whether tensor-parallel ranks divide norms and residuals by tokens, too."""
    pipeline: int = 1
    virtual_stages: int = 1
    """Of a pipeline's rank."""
    schedule: str = "1f1b"
    """Of a pipeline: one of SCHEDULES."""
    context: int = 1
    """Ranks that divide a sequence."""
    expert: int = 1
    """Data-parallel ranks that divide experts."""
    sharding: Sharding = "none"
    shard_group: int | None = None
    """Data-parallel ranks that divide what is sharded, where not all of them do."""
    ranks_per_node: int | None = None
    """None: as many as the hardware has devices in a node."""
    context_exchange: str = "ring"
    """One of CONTEXT_EXCHANGES."""
    expert_tensor: int | None = None
    """Tensor-parallel ranks that divide an expert; the others have other experts. None: all."""

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "virtual_stages", "context", "expert"):
            require_count(name, getattr(self, name), MOST_RANKS)
        for name in ("ranks_per_node", "shard_group", "expert_tensor"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), MOST_RANKS)
        if not isinstance(self.sequence, bool):
            raise UsageError(f"sequence is {self.sequence!r}; write True or False")
        object.__setattr__(self, "sharding", find_sharding(str(self.sharding)))
        object.__setattr__(self, "schedule", find_schedule(str(self.schedule)))
        if self.sequence and self.tensor == 1:
            raise UsageError("sequence parallelism divides what tensor parallelism leaves whole; "
                             "give tensor, too")  # fmt: skip
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise UsageError("virtual stages are those of a pipeline; give pipeline, too")
        self._require_exchanges()

    def _require_exchanges(self) -> None:
        """Of context and expert parallelism."""
        if self.context_exchange not in CONTEXT_EXCHANGES:
            raise UsageError(
                f"there is no context exchange {str(self.context_exchange)[:40]!r}; choose one of "
                f"{', '.join(CONTEXT_EXCHANGES)}"
            )
        if self.expert_tensor is not None and self.tensor % self.expert_tensor:
            raise UsageError(
                f"expert_tensor={self.expert_tensor} does not divide the {self.tensor} "
                "tensor-parallel ranks; choose a divisor"
            )
        alike = self.data * self.context * self.tensor // (self.expert_tensor or self.tensor)
        if alike % self.expert:
            raise UsageError(
                f"expert={self.expert} does not divide the {alike} ranks that have all other "
                "parameters in common; choose a divisor"
            )

    @property
    def ranks(self) -> int:
        return self.data * self.model_ranks

    @property
    def model_ranks(self) -> int:
        """That share the sequences of one data-parallel rank."""
        return self.tensor * self.pipeline * self.context

    @property
    def stages(self) -> int:
        return self.pipeline * self.virtual_stages

    def list_stages(self, pipeline_rank: int) -> list[int]:
        """That a rank of the pipeline has.

        >>> Parallelism(pipeline=2, virtual_stages=2, schedule="zbv").list_stages(0)
        [0, 3]
        """
        if SCHEDULES[self.schedule].is_v:
            return [pipeline_rank, 2 * self.pipeline - 1 - pipeline_rank]
        return list(range(pipeline_rank, self.stages, self.pipeline))

    def find_stages(self, rank: int) -> list[int]:
        """That a rank of the job has: those of one stage are next to each other.

        >>> [Parallelism(tensor=2, pipeline=2).find_stages(rank) for rank in range(4)]
        [[0], [0], [1], [1]]
        """
        return self.list_stages(rank // (self.ranks // self.pipeline))

    def __str__(self) -> str:
        """
        >>> print(Parallelism(data=8, tensor=2, sharding="full"))
        16 ranks: data 8, tensor 2, sharding full
        """
        if self.ranks == 1:
            return "1 rank"
        parts = [
            f"{name} {getattr(self, name)}"
            for name in ("data", "tensor", "pipeline", "context", "expert")
            if getattr(self, name) > 1
        ]
        return f"{self.ranks} ranks: {', '.join([*parts, f'sharding {self.sharding}'])}"


def name_stages(message: str, parallelism: Parallelism) -> str:
    """A message about ranks that says which stages of a pipeline they have, too.

    >>> name_stages("rank 1: killed", Parallelism(pipeline=2))
    'rank 1 (stage 1 of 2): killed'
    """

    def add(found: re.Match[str]) -> str:
        rank, split = int(found[1]), parallelism
        if split.pipeline == 1 or rank >= split.ranks:
            return found[0]
        numbers = split.find_stages(rank)
        words = f"stage{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"
        return f"{found[0]} ({words} of {split.stages})"

    return re.sub(r"\brank ([0-9]{1,9})\b", add, message)


def divide_layers(layers: int, stages: int) -> list[range]:
    """Of each stage of a pipeline. Where they do not divide evenly, the last stage, which has the
    head, and the first one, which has the embedding, are the last to have one more.

    >>> divide_layers(7, 4)
    [range(0, 2), range(2, 4), range(4, 6), range(6, 7)]
    """
    each, more = divmod(layers, stages)
    by_turn = [*range(1, stages - 1), 0, stages - 1][:stages]
    larger = set(by_turn[:more])
    ends = list(accumulate(each + (stage in larger) for stage in range(stages)))
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def require_count(name: str, value: object, most: int, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(
            f"{name} is {str(value)[:40]!r}; write a whole number from {least} to {most:.0e}"
        )


_USUAL = Parallelism()


def is_data_only(parallelism: Parallelism) -> bool:
    """Whether every rank computes with all of the model."""
    names = ("tensor", "sequence", "pipeline", "context", "expert", "shard_group")
    is_usual = all(getattr(parallelism, name) == getattr(_USUAL, name) for name in names)
    return is_usual and parallelism.sharding != "zero1"


def require_data_only(parallelism: Parallelism, who: str) -> None:
    """Refuse the kinds of parallelism that `who`, a command or a function, does not honour yet.

    >>> require_data_only(Parallelism(tensor=8), "training")
    Traceback (most recent call last):
    flopwatch.errors.UsageError: training does not know tensor parallelism yet; leave tensor=8 out
    """
    for name in ("tensor", "sequence", "pipeline", "context", "expert"):
        value = getattr(parallelism, name)
        if value != getattr(_USUAL, name):
            raise UsageError(
                f"{who} does not know {name} parallelism yet; leave {name}={value} out"
            )
    if parallelism.sharding == "zero1":
        raise UsageError(f"{who} does not know sharding zero1 yet; choose zero2 or full")


def count_job_shards(parallelism: Parallelism) -> int:
    """Into how many parts data-parallel ranks divide a parameter, or what is sharded of it."""
    if parallelism.shard_group is not None and parallelism.sharding not in UNSHARDED:
        return parallelism.shard_group
    per_node = parallelism.ranks_per_node or parallelism.ranks
    # The ranks of a node that share a sequence, or layers, are neighbours.
    of_node = max(1, per_node // (parallelism.tensor * parallelism.context))
    return count_shards(parallelism.sharding, parallelism.data, of_node)


def count_shards(sharding: Sharding, ranks: int, ranks_per_node: int) -> int:
    """Into how many parts a parameter is divided: with hybrid, among the ranks of a node where
    there are several nodes, and else into halves of the job."""
    if sharding in UNSHARDED:
        return 1
    if sharding != "hybrid":
        return ranks
    shards = ranks_per_node if ranks_per_node < ranks else ranks // 2
    if shards < 2 or ranks % shards:
        raise Unsupported(
            f"hybrid sharding divides a model within groups of at least 2 ranks and copies it "
            f"between at least 2 such groups, and {ranks} ranks are not such groups; take 4, or "
            "another even number from there on"
        )
    return shards
