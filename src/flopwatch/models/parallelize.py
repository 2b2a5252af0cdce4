"""How the ranks of a job share a model: whole on each of them, or in parts.

Each way wraps a model, knows how to hold back what only the last micro-batch of a step has to do,
and averages gradients over all ranks. All collectives of a step are noted in a journal: those that
a rank is stopped by as visits, those that go on in the background as passed by. On an accelerator a
rank is stopped where the stream that computes waits for that of a collective: from the event before
the wait to the event after the collective, both on the device. The sum of all visits is the exposed
communication. Of a collective that runs beside the computation its own beginning and end are noted,
too: what of it nobody waits for is overlapped.

    none      every rank has all of it, and averages gradients when the backward pass is done:
              nothing overlaps. The baseline; with one rank, the ordinary loop.
    ddp       DistributedDataParallel: averages a bucket of gradients while the backward pass goes
              on; before the last micro-batch, none.
    zero1     the same, and each rank updates its part of the parameters only, by torch's
              ZeroRedundancyOptimizer, and sends it to the others.
    full      fully_shard (FSDP2): each rank has a part of every parameter, its gradient and the
              optimizer's state. A block's parameters are gathered before it is computed and freed
              after, in both passes; those outside of blocks stay from the forward to the backward
              pass, which begins with them.
    zero2     the same, but blocks too stay gathered until the backward pass.
    hybrid    full within groups of ranks, and each group has a whole model: between groups,
              gradients are averaged after the last micro-batch.

Ways that shard reduce gradients after every micro-batch: to keep whole ones until the last would
take the memory that sharding saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from flopwatch.devices.kinds import is_host
from flopwatch.jobs.parallelism import SCHEDULES, Parallelism
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.builder import find_blocks, put_on
from flopwatch.models.device_mesh import JobMesh, find_own
from flopwatch.models.exchange_notes import find_exchange
from flopwatch.models.expert_parallel import divide_experts, list_divided, name_divided
from flopwatch.models.tensor_parallel import LocalParameters, divide_part
from flopwatch.worker.rank_times import Exchange, Journal, Visit

BUCKET_BYTES = 25 * 2**20
"""As much as DistributedDataParallel sends at once."""


class Shared(Protocol):
    """A model that ranks share, from one of them."""

    call: Callable[..., Any]
    """In the place of the model."""
    notes: Sequence[str]
    """What a reader of its times should know."""

    def hold(self) -> AbstractContextManager[object]:
        """Around all micro-batches but the last."""

    def finish(self) -> None:
        """When the last backward pass has returned: gradients are averages over all ranks then."""


Fill = Callable[[nn.Module], None]
"""Gives a part of a model its weights, where it is computed, if it has none yet."""


def leave(part: nn.Module) -> None:
    """Of a model that has all its weights already."""


def share(
    model: nn.Module,
    job: TrainingJob,
    device: str,
    journal: Journal,
    fill: Fill = leave,
    mesh: JobMesh | None = None,
) -> Shared:
    """Wrap a model, or a stage of one, that is the same on all data-parallel ranks, and put it
    where it is computed."""
    mesh = JobMesh(job.parallelism, device) if mesh is None else mesh
    blocks = settle(model, job, device, fill, mesh, journal)
    if job.sharding == "none":
        for _ in blocks:
            pass
        return Replica(model, mesh, journal)
    if job.sharding in ("ddp", "zero1"):
        for _ in blocks:
            pass
        if job.parallelism.tensor > 1:
            LocalParameters(model)
        return Ddp(model, mesh, journal)
    return Shards(model, blocks, job, mesh, journal)


def settle(
    model: nn.Module,
    job: TrainingJob,
    device: str,
    fill: Fill,
    mesh: JobMesh,
    journal: Journal,
) -> Iterator[nn.Module]:
    """Give a model its weights where it is computed, block by block, since a whole one need not fit
    there, nor into the host's memory once for every rank; of a divided layer, and of divided
    experts, a rank keeps its part. Yields each block when that is done, and does so with the rest
    when all are taken."""
    blocks = find_blocks(model)
    split = job.parallelism
    for part in (*blocks, model):
        fill(part)
        put_on(device, part, left=blocks if part is model else ())
        if split.tensor > 1:
            divide_part(part, mesh.find("tp"), sequence=split.sequence)
        if mesh.experts is not None:
            divide_experts(part, mesh.experts, journal)
        if part is not model:
            yield part


GATHERED = (
    "parameters stay gathered from the forward to the backward pass, as with zero2: FSDP gives "
    "wrong gradients where a schedule computes those of weights apart from the others"
)


def keeps_gathered(parallelism: Parallelism) -> bool:
    """Whether what is sharded of a pipeline's stage must not be freed after the forward pass: where
    the backward pass is split, torch computes gradients with what was gathered then, and would find
    it freed, without an error."""
    return parallelism.pipeline > 1 and SCHEDULES[parallelism.schedule].splits_backward


class Replica:
    """Sharding none."""

    notes: Sequence[str] = ()

    def __init__(self, model: nn.Module, mesh: JobMesh, journal: Journal) -> None:
        self.call: Callable[..., Any] = model
        self._averages = [
            Average(model, mesh, journal, of_experts=of_experts) for of_experts in (False, True)
        ]

    def hold(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self) -> None:
        for average in self._averages:
            average.take()


class Average:
    """Of gradients over all data-parallel ranks: of those that all of them have, or those of
    experts that some of them have."""

    def __init__(
        self, model: nn.Module, mesh: JobMesh, journal: Journal, *, of_experts: bool
    ) -> None:
        self._journal = journal
        self._mesh = mesh.expert_data if of_experts else mesh.data
        self._ranks = 1 if mesh.data is None else mesh.data.size()
        divided = dict(name_divided(model))
        averaged = [p for name, p in model.named_parameters() if (name in divided) == of_experts]
        self._buckets = fill_buckets(averaged) if self._ranks > 1 else []

    def take(self) -> None:
        for bucket in self._buckets:
            gradients = [find_own(p.grad) for p in bucket if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            if self._mesh is not None and self._mesh.size() > 1:
                with self._journal.visit(find_exchange("all-reduce", self._mesh)):
                    distributed.all_reduce(flat, group=self._mesh.get_group())
            flat /= self._ranks
            parts = flat.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))


def fill_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters that travel together, the last ones first, as the backward pass has them."""
    buckets: list[list[nn.Parameter]] = []
    filled_bytes = 0
    for parameter in reversed(parameters):
        is_alike = buckets and buckets[-1][0].dtype == parameter.dtype
        if not is_alike or filled_bytes + parameter.nbytes > BUCKET_BYTES:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(parameter)
        filled_bytes += parameter.nbytes
    return buckets


class Ddp:
    """ddp. A bucket is passed by; only the last has nothing left to overlap with, so that
    the rank is stopped from its start to the end of the backward pass."""

    notes: Sequence[str] = ()

    def __init__(self, model: nn.Module, mesh: JobMesh, journal: Journal) -> None:
        assert mesh.data is not None
        group = mesh.data.get_group()
        # The models' only buffers are tables of positions, which never change.
        options: dict[str, Any] = {_SYNCHRONIZE: False}
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, [name for name, _ in name_divided(model)]
        )
        self.call: Any = DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True, **options
        )
        self._journal = journal
        self._group = group
        self._ranks = mesh.data.size()
        self._exchange = find_exchange("all-reduce", mesh.data)
        self._arrived: Any | None = None
        self._of_experts = Average(model, mesh, journal, of_experts=True)
        # Torch reads annotations, and cannot read those that are text.
        self.call.register_comm_hook(None, lambda state, bucket: self._average(bucket))

    def hold(self) -> AbstractContextManager[object]:
        held: AbstractContextManager[object] = self.call.no_sync()
        return held

    def finish(self) -> None:
        if self._arrived is not None:
            left = self._journal.clock.mark()
            self._journal.visits.append(Visit(self._arrived, left, exchange=self._exchange))
            self._arrived = None
        self._of_experts.take()

    def _average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        journal, passed = self._journal, None
        if bucket.is_last():
            self._arrived = journal.clock.mark()
        else:
            passed = journal.pass_by(self._exchange)

        def end(done: Any) -> Tensor:
            """On an accelerator in a stream that waits for the collective, when that is queued."""
            if passed is not None:
                passed.ended = journal.clock.mark()
            averaged: Tensor = done.value()[0]
            return averaged

        work: Any = distributed.all_reduce(
            bucket.buffer().div_(self._ranks), group=self._group, async_op=True
        )
        averaging: torch.futures.Future[Tensor] = work.get_future().then(end)
        return averaging


class Shards:
    """Sharding full, zero2 and hybrid."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Iterable[nn.Module],
        job: TrainingJob,
        mesh: JobMesh,
        journal: Journal,
    ) -> None:
        precision = job.arithmetic
        short = None if precision.autocast is None else getattr(torch, precision.autocast)
        policy = MixedPrecisionPolicy(
            param_dtype=short, reduce_dtype=None if short is None else torch.float32
        )
        group = mesh.shards
        reshards = job.sharding != "zero2" and not keeps_gathered(job.parallelism)
        for block in blocks:
            for experts in list_divided(block):  # among those ranks that have the same ones
                same = mesh.expert_data
                assert same is not None
                shard: Any = fully_shard(
                    experts, mesh=same, reshard_after_forward=reshards, mp_policy=policy
                )
                shard.set_gradient_divide_factor(float(job.parallelism.data))
                # Gloo cannot multiply on the way; and where there is no way, torch with this
                # switched on would divide twice.
                shard.set_force_sum_reduction_for_comms(same.size() > 1)
            fully_shard(block, mesh=group, reshard_after_forward=reshards, mp_policy=policy)
        self.call: Any = fully_shard(
            model, mesh=group, reshard_after_forward=False, mp_policy=policy
        )
        self._mesh = group
        self._is_hybrid = group.ndim == 2
        device = group.device_type
        self.notes: Sequence[str] = []
        self._note(journal, device)
        if not journal.is_complete:
            self.notes = [UNNOTED]

    @contextmanager
    def hold(self) -> Iterator[None]:
        if self._is_hybrid:
            self.call.set_requires_all_reduce(False)
        yield
        if self._is_hybrid:
            self.call.set_requires_all_reduce(True)

    def finish(self) -> None:
        """It is done in the backward pass."""

    def _note(self, journal: Journal, device: str) -> None:
        """Have all collectives noted, where this torch lets us in."""
        is_complete, journal.is_complete = journal.is_complete, False
        sharded, copied = (self._mesh, self._mesh.ndim - 1), (self._mesh, 0)
        gathers = find_exchange("all-gather", sharded)
        scatters = find_exchange("reduce-scatter", sharded)
        reduces = find_exchange("all-reduce", copied)
        reduced = Unwaited(scatters)
        for module in self.call.modules():
            if isinstance(module, FSDPModule) and hasattr(module, "set_custom_all_gather"):
                gather = AllGather(journal, device, Unwaited(gathers))
                scatter = ReduceScatter(journal, device, reduced, reduces)
                module.set_custom_all_gather(gather)  # type: ignore[arg-type]
                module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
                if self._is_hybrid:
                    module.set_all_reduce_hook(scatter.note_all_reduce)
                if is_host(device):
                    journal.is_complete = is_complete
                for waiting in [] if is_host(device) else list_groups(module):
                    self.notes, journal.is_complete = [NOTED], is_complete
                    note_waits(waiting, journal, gather.unwaited, reduced)


NOTED = (
    "waiting and transfer are the times in which the computing stream waited for a collective, "
    "measured by events on the device; what ran beside the computation is overlapped"
)
UNNOTED = (
    "how long the computing stream waited for collectives is not known: this version of torch does "
    "not show it"
)


class Unwaited:
    """A collective that the device computes beside, until its results are needed: marks in the
    stream of the collective. Of several, the last, since they run one after another."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.visit: Visit | None = None

    def begin(self, journal: Journal) -> None:
        """One before it is passed by: the wait for this one is for both."""
        if self.visit is not None:
            journal.visits.append(self.visit)
        now = journal.clock.mark()
        self.visit = Visit(now, None, now, exchange=self.exchange)

    def end(self, journal: Journal) -> None:
        assert self.visit is not None
        self.visit.ended = journal.clock.mark()

    def meet(self, journal: Journal) -> None:
        """Before the stream that computes waits for it: the rank is stopped from here to there, or
        not at all where it has ended before."""
        if self.visit is not None:
            self.visit.arrived, self.visit.left = journal.clock.mark(), self.visit.ended
            journal.visits.append(self.visit)
            self.visit = None


def list_groups(module: Any) -> list[Any]:
    """What FSDP gathers and reduces of a module at once; none in a torch that has changed it."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    known = [group for group in groups if group is not None]
    return [group for group in known if all(hasattr(group, name) for name in WAITS)]


WAITS = ("wait_for_unshard", "post_backward", "finalize_backward")
"""What makes the stream that computes wait: for the parameters of a block; for the gradients before
these, whose memory is needed again; and for all of them in the end."""


def note_waits(group: Any, journal: Journal, gathered: Unwaited, reduced: Unwaited) -> None:
    for name, awaited in zip(WAITS, (gathered, reduced, reduced), strict=True):
        setattr(group, name, _meeting(awaited, journal, getattr(group, name)))


def _meeting(awaited: Unwaited, journal: Journal, wait: Callable[..., None]) -> Callable[..., None]:
    def meet(*arguments: Any) -> None:
        awaited.meet(journal)
        wait(*arguments)

    return meet


class Collective:
    """One of fully_shard's. On a CPU it stops the rank until it is done. On an accelerator it runs
    in a stream of its own beside the computation, which waits for it only where it needs what comes
    of it (`Unwaited.meet`)."""

    def __init__(self, journal: Journal, device: str, unwaited: Unwaited) -> None:
        self.journal = journal
        self.unwaited = unwaited
        self.stops = is_host(device)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @contextmanager
    def noting(self) -> Iterator[None]:
        if self.stops:
            with self.journal.visit(self.unwaited.exchange):
                yield
        else:  # in the collective's stream
            self.unwaited.begin(self.journal)
            yield
            self.unwaited.end(self.journal)


class AllGather(Collective):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: distributed.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        with self.noting():
            return _gather(output_tensor, input_tensor, group=group, async_op=async_op)


class ReduceScatter(Collective):
    def __init__(
        self, journal: Journal, device: str, unwaited: Unwaited, all_reduce: Exchange
    ) -> None:
        """`all_reduce` is what follows between groups."""
        super().__init__(journal, device, unwaited)
        self._all_reduce = all_reduce
        self._arrived: Any | None = None

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: distributed.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        with self.noting():
            work = _scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)
        self._arrived = self.journal.clock.mark()
        return work

    def note_all_reduce(self, reduced: Tensor) -> None:
        """Called when gradients have been averaged between groups, right after they were reduced
        within one: nothing lies between these."""
        if self.stops:
            left = self.journal.clock.mark()
            self.journal.visits.append(Visit(self._arrived, left, exchange=self._all_reduce))
        else:
            self.unwaited.end(self.journal)


# torch 2.13 renamed these, and warns of the old names.
_SYNCHRONIZE = "forward_sync_buffers"
if _SYNCHRONIZE not in signature(DistributedDataParallel).parameters:
    _SYNCHRONIZE = "broadcast_buffers"
_gather: Callable[..., Any] = getattr(
    distributed, "all_gather_single", distributed.all_gather_into_tensor
)
_scatter: Callable[..., Any] = getattr(
    distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor
)
