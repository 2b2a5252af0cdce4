"""Expert parallelism: data-parallel ranks that divide the experts of mixtures among them.

Of `ep` neighbouring ranks, each has experts / ep of every mixture, and all of everything else. Each
routes its own tokens, sends every row to the rank that has its expert, computes what it was sent
and sends the results back: two all-to-alls in the forward pass, two in the backward pass, after one
of numbers alone, since every rank sends as many rows as its router says.

An expert's gradient on its rank is a sum over the tokens of all `ep` ranks already. The mean over
all data-parallel ranks is the sum over those groups that have the same experts (`expert_data` of
the mesh), divided by the number of all data-parallel ranks, not by that of the groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from flopwatch.models.exchange_notes import find_exchange
from flopwatch.models.feed_forward import Experts, Mixture
from flopwatch.worker.instruments import region
from flopwatch.worker.rank_times import Journal


def divide_experts(part: nn.Module, mesh: DeviceMesh, journal: Journal) -> None:
    """Of a model's part, where they are not divided yet, and all ranks have the same: each keeps
    its own."""
    for mixture in part.modules():
        if isinstance(mixture, Mixture) and not isinstance(mixture.compute_experts, Exchange):
            for name, whole in list(mixture.experts.named_parameters()):
                own = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
                setattr(mixture.experts, name, nn.Parameter(own))
            mixture.compute_experts = Exchange(mesh, journal)


def list_divided(part: nn.Module) -> list[Experts]:
    return [
        mixture.experts
        for mixture in part.modules()
        if isinstance(mixture, Mixture) and isinstance(mixture.compute_experts, Exchange)
    ]


def name_divided(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of divided experts."""
    own = {id(parameter) for experts in list_divided(model) for parameter in experts.parameters()}
    return ((name, each) for name, each in model.named_parameters() if id(each) in own)


class Exchange:
    """Computes rows, which are sorted by expert, where their experts are."""

    def __init__(self, mesh: DeviceMesh, journal: Journal) -> None:
        self._group = mesh.get_group()
        self._ranks = mesh.size()
        self._journal = journal
        self._exchange = find_exchange("all-to-all", mesh)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, experts: Experts, rows: Tensor, ends: Tensor) -> Tensor:
        with region("feed-forward/dispatch"):
            own = ends.diff(prepend=ends.new_zeros(1)).view(self._ranks, -1)
            theirs = torch.empty_like(own)  # by rank that sends, and expert of this rank
            with self._journal.visit(self._exchange):
                distributed.all_to_all_single(theirs, own, group=self._group)
            sent, arrived = own.sum(dim=1).tolist(), theirs.sum(dim=1).tolist()
            rows = AllToAll.apply(rows, sent, arrived, self)
            # What has arrived is sorted by rank, then by expert.
            experts_of_rank = torch.arange(theirs.shape[1], device=rows.device)
            order = experts_of_rank.repeat(self._ranks).repeat_interleave(theirs.flatten())
            order = order.argsort(stable=True)
            rows = rows.index_select(0, order)
        results = experts(rows, theirs.sum(dim=0).cumsum(0).int())
        with region("feed-forward/combine"):
            results = results.index_select(0, order.argsort())
            back: Tensor = AllToAll.apply(results, arrived, sent, self)
            return back

    def move(self, rows: Tensor, sent: list[int], arriving: list[int]) -> Tensor:
        """`sent` has how many of the rows go to each rank, in order, `arriving` how many come."""
        arrived = rows.new_empty(sum(arriving), rows.shape[1])
        with self._journal.visit(self._exchange):
            distributed.all_to_all_single(
                arrived, rows.contiguous(), arriving, sent, group=self._group
            )
        return arrived


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], arriving: list[int], exchange: Exchange
    ) -> Tensor:
        ctx.way = (arriving, sent)
        ctx.exchange = exchange
        return exchange.move(rows, sent, arriving)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.exchange.move(gradient, *ctx.way), None, None, None
