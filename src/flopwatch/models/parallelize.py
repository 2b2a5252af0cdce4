"""How the ranks of a job share a model: whole on each of them, or in parts.

Each way wraps a model, knows how to hold back what only the last micro-batch of a step has to do,
and averages gradients over all ranks. All collectives of a step are noted in a journal: those that
a rank is stopped by as visits, those that go on in the background as passed by.

    none      every rank has all of it, and averages gradients when the backward pass is done:
              nothing overlaps. The baseline; with one rank, the ordinary loop.
    ddp       DistributedDataParallel: averages a bucket of gradients while the backward pass goes
              on; before the last micro-batch, none.
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

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from flopwatch.jobs.parallelism import Parallelism, count_shards
from flopwatch.jobs.precision import Precision
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.builder import find_blocks
from flopwatch.worker.rank_times import Journal, Visit

BUCKET_BYTES = 25 * 2**20
"""As much as DistributedDataParallel sends at once."""


class Shared(Protocol):
    """A model that ranks share, from one of them."""

    call: Callable[..., Any]
    """In the place of the model."""

    def hold(self) -> AbstractContextManager[object]:
        """Around all micro-batches but the last."""

    def finish(self) -> None:
        """When the last backward pass has returned: gradients are averages over all ranks then."""


def share(model: nn.Module, job: TrainingJob, device: str, journal: Journal) -> Shared:
    """Wrap a model that is in the CPU's memory, the same on all ranks, and put it where it is
    computed: part by part where it is sharded, since a whole one need not fit there."""
    if job.sharding == "none":
        return Replica(model.to(device), journal)
    if job.sharding == "ddp":
        return Ddp(model.to(device), journal)
    mesh = make_mesh(job.parallelism, device)
    return Shards(model, mesh, job.sharding != "zero2", job.arithmetic, journal)


def make_mesh(parallelism: Parallelism, device: str) -> DeviceMesh:
    ranks = distributed.get_world_size()
    if parallelism.sharding == "hybrid":
        shards = count_shards("hybrid", ranks, parallelism.ranks_per_node or ranks)
        return init_device_mesh(
            device, (ranks // shards, shards), mesh_dim_names=("replicas", "shards")
        )
    return init_device_mesh(device, (ranks,))


class Replica:
    """Sharding none."""

    def __init__(self, model: nn.Module, journal: Journal) -> None:
        self.call: Callable[..., Any] = model
        self._journal = journal
        self._ranks = distributed.get_world_size() if distributed.is_initialized() else 1
        self._buckets = fill_buckets(list(model.parameters())) if self._ranks > 1 else []

    def hold(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self) -> None:
        for bucket in self._buckets:
            gradients = [p.grad for p in bucket if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            with self._journal.visit():
                distributed.all_reduce(flat)
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

    def __init__(self, model: nn.Module, journal: Journal) -> None:
        # The models' only buffers are tables of positions, which never change.
        options: dict[str, Any] = {_SYNCHRONIZE: False}
        self.call: Any = DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
        self._journal = journal
        self._arrived: Any | None = None
        # Torch reads annotations, and cannot read those that are text.
        self.call.register_comm_hook(None, lambda state, bucket: self._average(bucket))

    def hold(self) -> AbstractContextManager[object]:
        held: AbstractContextManager[object] = self.call.no_sync()
        return held

    def finish(self) -> None:
        if self._arrived is not None:
            left = self._journal.clock.mark()
            self._journal.visits.append(Visit(self._arrived, left))
            self._arrived = None

    def _average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        if bucket.is_last():
            self._arrived = self._journal.clock.mark()
        else:
            self._journal.pass_by()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]


class Shards:
    """Sharding full, zero2 and hybrid."""

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        reshards: bool,
        precision: Precision,
        journal: Journal,
    ) -> None:
        short = None if precision.autocast is None else getattr(torch, precision.autocast)
        policy = MixedPrecisionPolicy(
            param_dtype=short, reduce_dtype=None if short is None else torch.float32
        )
        for block in find_blocks(model):
            fully_shard(block, mesh=mesh, reshard_after_forward=reshards, mp_policy=policy)
        self.call: Any = fully_shard(
            model, mesh=mesh, reshard_after_forward=False, mp_policy=policy
        )
        self._is_hybrid = mesh.ndim == 2
        self._note(journal)

    @contextmanager
    def hold(self) -> Iterator[None]:
        if self._is_hybrid:
            self.call.set_requires_all_reduce(False)
        yield
        if self._is_hybrid:
            self.call.set_requires_all_reduce(True)

    def finish(self) -> None:
        """It is done in the backward pass."""

    def _note(self, journal: Journal) -> None:
        """Have all collectives noted, where this torch lets us in."""
        for module in self.call.modules():
            if isinstance(module, FSDPModule) and hasattr(module, "set_custom_all_gather"):
                scatter = ReduceScatter(journal)
                module.set_custom_all_gather(AllGather(journal))  # type: ignore[arg-type]
                module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
                if self._is_hybrid:
                    module.set_all_reduce_hook(scatter.note_all_reduce)


class Collective:
    """One of fully_shard's. On a CPU it stops the rank until it is done; on a GPU it runs in a
    stream of its own, overlapped with computation, and is passed by."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @contextmanager
    def noting(self, tensor: Tensor) -> Iterator[None]:
        if tensor.is_cuda:
            self.journal.pass_by()
            yield
        else:
            with self.journal.visit():
                yield


class AllGather(Collective):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: distributed.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        with self.noting(output_tensor):
            return _gather(output_tensor, input_tensor, group=group, async_op=async_op)


class ReduceScatter(Collective):
    _arrived: Any | None = None

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: distributed.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        with self.noting(output_tensor):
            work = _scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)
        self._arrived = self.journal.clock.mark()
        return work

    def note_all_reduce(self, reduced: Tensor) -> None:
        """Called when gradients have been averaged between groups, right after they were reduced
        within one: nothing lies between these."""
        if reduced.is_cuda:
            self.journal.pass_by()
        else:
            self.journal.visits.append(Visit(self._arrived, self.journal.clock.mark()))


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
