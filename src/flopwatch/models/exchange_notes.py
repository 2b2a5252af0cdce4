"""Notes of what ranks exchange, in the journal of the workload that runs.

torch's parts talk to other ranks through few functions: DTensor (tensor and expert parallelism)
through those of `torch.distributed._functional_collectives`, stages of a pipeline through one of
`torch.distributed.pipelining.schedules`. These are replaced, once in a process, by functions that
note when the rank came to an exchange and when it went on, and then do the same. What
fully_shard and DistributedDataParallel exchange has hooks of its own (`parallelize`).

A functional collective begins when it is called, and the rank stops for it where its result is
first used. What is sent or received is waited for where the schedule says so. On an accelerator
marks are events of the stream that computes: it stops from the mark before a wait to that after.

A torch that has other functions is not noted, and its journal is not complete. Neither is what is
compiled: the functions are those of its graph then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, wraps
from inspect import signature
from typing import Any

import torch.distributed._functional_collectives as functional
from torch import distributed
from torch.compiler import is_compiling
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh

from flopwatch.devices.base import Clock
from flopwatch.worker.rank_times import RECEIVE, SEND, Exchange, Journal, Notes, Pass, Turn, Visit

COLLECTIVES = {
    "all_reduce": "all-reduce",
    "all_gather_single": "all-gather",
    "all_gather_tensor": "all-gather",
    "all_gather_single_autograd": "all-gather",
    "all_gather_tensor_autograd": "all-gather",
    "reduce_scatter_single": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_single_autograd": "reduce-scatter",
    "reduce_scatter_tensor_autograd": "reduce-scatter",
    "all_to_all_single": "all-to-all",
    "all_to_all_single_autograd": "all-to-all",
}
"""Of `_functional_collectives`, by their names in torch 2.13 and before: what peaks call them."""
GROUP = "group"
SEND_OR_RECEIVE = "_batch_p2p"
"""Of `schedules`: begins what one rank sends to or receives from others."""
PASSES: dict[str, Pass] = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "weight",
}
"""Of a pipeline stage."""


class RankJournal(Journal):
    """Has the exchanges of torch's parts, from when it is cleared until it is read: what looks at
    results between runs is no part of a step."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.is_complete = replace_functions()

    def clear(self) -> None:
        super().clear()
        _noting.journal = self
        _noting.unwaited.clear()

    def read(self) -> Notes:
        _noting.journal = None
        return super().read()


class Noting:
    """Of this process: one workload runs at a time."""

    def __init__(self) -> None:
        self.journal: RankJournal | None = None
        """Of the workload that runs; None: nobody wants to know."""
        self.is_inside = False
        """Of a noted function, which may call another."""
        self.unwaited: dict[int, Visit] = {}
        """By the identity of the tensor that waits for it."""


_noting = Noting()
_exchanges: dict[tuple[str, Hashable], Exchange] = {}


@cache
def replace_functions() -> bool:
    """Once in a process; whether this torch lets us."""
    schedules: Any = pipelining.schedules
    if not hasattr(functional, "wait_tensor") or not hasattr(schedules, SEND_OR_RECEIVE):
        return False
    for name, kind in COLLECTIVES.items():
        if hasattr(functional, name):
            setattr(functional, name, _note_collective(getattr(functional, name), kind))
    functional.wait_tensor = _note_wait(functional.wait_tensor)
    begin = getattr(schedules, SEND_OR_RECEIVE)
    setattr(schedules, SEND_OR_RECEIVE, _note_transfers(begin))
    return True


def _note_collective(collective: Callable[..., Any], kind: str) -> Callable[..., Any]:
    place = list(signature(collective).parameters).index(GROUP)

    @wraps(collective)
    def noted(*arguments: Any, **named: Any) -> Any:
        if is_compiling() or _noting.is_inside or _noting.journal is None:
            return collective(*arguments, **named)
        journal = _noting.journal
        group = named[GROUP] if GROUP in named else arguments[place]
        visit = journal.pass_by(find_exchange(kind, group))
        _noting.is_inside = True
        try:
            result = collective(*arguments, **named)
        finally:
            _noting.is_inside = False
        if isinstance(result, functional.AsyncCollectiveTensor) and not result.completed:
            _noting.unwaited[id(result.elem)] = visit
        else:  # it was waited for inside
            visit.left = journal.clock.mark()
        return result

    return noted


def _note_wait(wait: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(wait)
    def noted(tensor: Any) -> Any:
        if is_compiling():
            return wait(tensor)
        visit = _noting.unwaited.pop(id(tensor), None)
        if visit is None or _noting.journal is None:
            return wait(tensor)
        visit.arrived = _noting.journal.clock.mark()
        result = wait(tensor)
        visit.left = _noting.journal.clock.mark()
        return result

    return noted


def _note_transfers(begin: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @wraps(begin)
    def noted(operations: Sequence[Any], *arguments: Any, **named: Any) -> list[Any]:
        journal = _noting.journal
        if journal is None:
            return begin(operations, *arguments, **named)
        visits = [journal.pass_by(find_transfer(operation)) for operation in operations]
        works = begin(operations, *arguments, **named)
        if len(works) == len(visits):
            return [NotedWork(*pair, journal) for pair in zip(works, visits, strict=True)]
        # Sent and received at once, and waited for together: what arrives last is a receive.
        visits.sort(key=lambda visit: visit.exchange.kind != RECEIVE)
        return [NotedWork(work, visits[0], journal) for work in works]

    return noted


class NotedWork:
    """A `distributed.Work`, of which it is noted when it is waited for."""

    def __init__(self, work: Any, visit: Visit, journal: Journal) -> None:
        self._work = work
        self._visit = visit
        self._journal = journal

    def wait(self, *arguments: Any) -> Any:
        if self._visit.left is not None:
            return self._work.wait(*arguments)
        self._visit.arrived = self._journal.clock.mark()
        result = self._work.wait(*arguments)
        self._visit.left = self._journal.clock.mark()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def find_exchange(kind: str, group: Any) -> Exchange:
    """`group` is what torch's collectives take: a process group or its name, a list of ranks, a
    mesh, or that and one of its dimensions."""
    key = (kind, tuple(group) if isinstance(group, list) else group)
    known = _exchanges.get(key)
    if known is None:
        known = _exchanges[key] = Exchange(kind, *_describe_group(group))
    return known


def _describe_group(group: Any) -> tuple[tuple[int, ...], str]:
    if isinstance(group, list):
        return tuple(group), ""
    mesh, dimension = group if isinstance(group, tuple) else (group, 0)
    if isinstance(mesh, DeviceMesh):
        names = mesh.mesh_dim_names
        return _list_ranks(mesh.get_group(dimension)), names[dimension] if names else ""
    if isinstance(group, str):
        group = distributed.distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined, arg-type]
    # A mesh describes its groups so.
    _, begin, name = getattr(group, "group_desc", "").rpartition(MESH)
    return _list_ranks(group), name if begin else ""


MESH = "mesh_"


def _list_ranks(group: Any) -> tuple[int, ...]:
    return tuple(distributed.get_process_group_ranks(group))


def note_owned_parameters(optimizer: Any, mesh: DeviceMesh, journal: Journal) -> None:
    """Of an optimizer whose ranks each update their own parameters (ZeroRedundancyOptimizer): they
    send them to all others at the end of its step."""
    send = getattr(optimizer, "_sync_params", None)
    if send is None:
        journal.is_complete = False
        return
    exchange = find_exchange("broadcast", mesh)

    def noted() -> None:
        with journal.visit(exchange):
            send()

    optimizer._sync_params = noted


PIPELINE = "pp"


def find_transfer(operation: Any) -> Exchange:
    """Of a `distributed.P2POp`."""
    rank, peer = distributed.get_rank(), operation.peer
    is_sent = operation.op in (distributed.isend, distributed.send)
    kind, ranks = (SEND, (rank, peer)) if is_sent else (RECEIVE, (peer, rank))
    key = (kind, ranks)
    known = _exchanges.get(key)
    if known is None:
        known = _exchanges[key] = Exchange(kind, ranks, PIPELINE)
    return known


def note_turns(stage: Any, journal: Journal) -> None:
    """Of a pipeline stage: when it computes which pass of which micro-batch."""
    for name, work in PASSES.items():
        setattr(stage, name, _note_turn(getattr(stage, name), work, stage.stage_index, journal))


def _note_turn(
    compute: Callable[..., Any], work: Pass, stage: int, journal: Journal
) -> Callable[..., Any]:
    clock = journal.clock

    @wraps(compute)
    def noted(micro_batch: int, *arguments: Any, **named: Any) -> Any:
        began = clock.mark()
        result = compute(micro_batch, *arguments, **named)
        journal.turns.append(Turn(work, stage, micro_batch, began, clock.mark()))
        return result

    return noted
