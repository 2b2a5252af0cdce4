"""How the ranks of a job talk to each other, seen from inside one of them.

Rank 0 builds, checks, samples and reports as a single process does. Before whatever all ranks must
do together it broadcasts an order, which the other ranks wait for. Orders and reports go over a
process group of their own (gloo, on the CPU), so that they meet none of the job's collectives, and
only between runs, so that none of it is timed. They are MessagePack and are checked on arrival:
torch's own exchange of objects unpickles what it receives, which runs code, and its connections
are not authenticated.

    build    V      make variant V
    gather   V      run it once, for the check
    run      V, N   run it, as run number N; with a third number, so many times in a window
    report   N      send the times of run N
    curves   V      take its curves
    drop     V      forget it
    leave           all is done
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.devices.base import Clock, open_backend
from flopwatch.errors import WorkerError
from flopwatch.settings import Device
from flopwatch.suites.workload import Workload
from flopwatch.worker import agreement
from flopwatch.worker.agreement import Gathered
from flopwatch.worker.messages import RankPlace
from flopwatch.worker.rank_times import Run, Share, Stop

START_AFTER_NS = 1_000_000
"""Time for the common start to reach all ranks."""
SPARE_S = 30.0
"""Ranks time out so much later than the runner does."""
JOIN_S = 60.0
"""Ranks are started together; one that is later than this is taken for lost."""
PINGS = 20
MOST_BYTES = 1 << 28
"""Of a message between ranks: a run's times are far shorter."""


class PortTaken(WorkerError):
    """Another program has taken the port of rank 0."""


class Communicator:
    """All ranks, from one of them."""

    def __init__(self, place: RankPlace, device: Device, patience_s: float) -> None:
        from torch import distributed

        self._backend = open_backend(device)
        _publish(place)
        store = _open_store(place)
        distributed.init_process_group(
            self._backend.collectives,
            store=store,
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=patience_s + SPARE_S),
        )
        self.place = place
        self._distributed = distributed
        # A rank waits for orders as long as it takes: the runner ends it.
        self._control = distributed.new_group(backend="gloo", timeout=timedelta(days=7))
        self._offset_ns = self._compare_clocks()

    @property
    def is_rank0(self) -> bool:
        return self.place.rank == 0

    def order(self, *words: Any) -> None:
        """By rank 0."""
        self._broadcast(words)

    def await_order(self) -> tuple[Any, ...]:
        words: tuple[Any, ...] = self._broadcast(None)
        return words

    def start_together(self, workload: Workload) -> float:
        """Prepare for a run, wait until all ranks have, and start at the same time; the time of
        the start on the clock that all share."""
        if workload.reset is not None:
            workload.reset()
        if workload.journal is not None:
            workload.journal.clear()
        self._backend.synchronize()
        self._distributed.barrier(group=self._control)
        start_ns = self._broadcast(self._now_ns() + START_AFTER_NS)
        while self._now_ns() < start_ns:
            pass  # sleeping would end at another time on every rank
        return self._now_ns()

    def collect(self, value: Any, kind: Any) -> list[Any]:
        """All values, which are of one kind, by rank, on rank 0; nothing on other ranks."""
        values = self._all_gather(value, kind)
        return values if self.is_rank0 else []

    def gather(self, workload: Workload, clock: Clock) -> tuple[Gathered, list[Share]]:
        """What `agreement.gather` gives, run by all at once, and what each took."""
        ready = replace(workload, reset=lambda: self.start_together(workload))
        found = agreement.gather(ready, clock)
        # Between its phases a check copies results: it has times, but no common run.
        rows: list[list[float]] = self.collect(found.phase_ns, list[float])
        slowest_ns = [max(column) for column in zip(*rows, strict=True)]
        shares = [Share(row, 0.0, 0.0) for row in rows]
        return replace(found, phase_ns=slowest_ns), shares

    def close(self) -> None:
        """When all is done; nccl wants it."""
        with suppress(Exception):
            self._distributed.destroy_process_group()

    def _now_ns(self) -> float:
        return time.perf_counter_ns() - self._offset_ns

    def _broadcast(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        import torch

        data = bytearray(msgspec.msgpack.encode(value))
        size = torch.tensor([len(data)])
        self._distributed.broadcast(size, src=0, group=self._control)
        box = torch.frombuffer(data, dtype=torch.uint8) if self.is_rank0 else _make_box(size)
        self._distributed.broadcast(box, src=0, group=self._control)
        return msgspec.msgpack.decode(box.numpy().tobytes())

    def _all_gather(self, value: Any, kind: Any) -> list[Any]:
        """The values of all ranks, on all of them."""
        import torch

        data = msgspec.msgpack.encode(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.place.ranks)]
        self._distributed.all_gather(sizes, torch.tensor([len(data)]), group=self._control)
        longest = max(sizes)
        boxes = [_make_box(longest) for _ in sizes]
        mine = torch.frombuffer(bytearray(data.ljust(int(longest), b"\0")), dtype=torch.uint8)
        self._distributed.all_gather(boxes, mine, group=self._control)
        return [
            msgspec.msgpack.decode(box[: int(size)].numpy().tobytes(), type=kind)
            for box, size in zip(boxes, sizes, strict=True)
        ]

    def _compare_clocks(self) -> float:
        """How far this rank's clock is ahead of rank 0's: the half-way point of the shortest of
        some exchanges. On one node all have the same clock."""
        boots: list[str | None] = self._all_gather(_read_boot_id(), str | None)
        self.nodes = len(set(boots))
        offset_ns = 0.0
        for rank, theirs in enumerate(boots):
            if theirs is None or theirs != boots[0]:
                found_ns = self._exchange_times(rank)
                offset_ns = found_ns if rank == self.place.rank else offset_ns
        return offset_ns

    def _exchange_times(self, rank: int) -> float:
        if rank == 0 or self.place.rank not in (0, rank):
            return 0.0
        trips = [self._ping(rank) for _ in range(PINGS)]
        return min(trips)[1]  # the shortest one's

    def _ping(self, rank: int) -> tuple[float, float]:
        """How long there and back took, and how far the clock of `rank` is ahead, seen by it."""
        import torch

        box = torch.zeros(1, dtype=torch.int64)
        peer = 0 if self.place.rank else rank
        if self.is_rank0:
            self._distributed.recv(box, src=peer, group=self._control)
            box[0] = time.perf_counter_ns()
            self._distributed.send(box, dst=peer, group=self._control)
            return 0.0, 0.0
        before_ns = time.perf_counter_ns()
        self._distributed.send(box, dst=peer, group=self._control)
        self._distributed.recv(box, src=peer, group=self._control)
        after_ns = time.perf_counter_ns()
        return after_ns - before_ns, (before_ns + after_ns) / 2 - int(box[0])


def _make_box(size: Any) -> Any:
    """For a message of so many bytes from another rank."""
    import torch

    if not 0 < int(size) <= MOST_BYTES:
        raise WorkerError(f"another rank announced a message of {int(size)} bytes; run it again")
    return torch.empty(int(size), dtype=torch.uint8)


def resolve(clock: Clock, began_ns: float, marks: Sequence[Any], visits: Sequence[Any]) -> Run:
    """A run, from the marks that were made at its start and after each phase."""

    def find_time_ns(mark: Any) -> float:
        (elapsed_ns,) = clock.elapsed_ns([marks[0], mark])
        return began_ns + elapsed_ns

    return Run(
        began_ns,
        tuple(find_time_ns(mark) for mark in marks[1:]),
        tuple(
            Stop(find_time_ns(v.arrived), None if v.left is None else find_time_ns(v.left))
            for v in visits
        ),
    )


def _open_store(place: RankPlace) -> Any:
    """The key-value store of the process group. Not by a URL: ranks under torchrun would all use
    torchrun's own."""
    from torch import distributed

    try:
        return distributed.TCPStore(  # type: ignore[attr-defined]
            place.address,
            place.port,
            place.ranks,
            is_master=place.rank == 0,
            timeout=timedelta(seconds=JOIN_S),
        )
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise PortTaken(
            f"port {place.port}, which was free a moment ago, is in use by another program; run it "
            "again"
        ) from None


def _publish(place: RankPlace) -> None:
    """What libraries expect to find, as torchrun would have set it."""
    os.environ.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.ranks),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.node_ranks),
        MASTER_ADDR=place.address,
        MASTER_PORT=str(place.port),
    )
    if place.is_one_node and Path("/sys/class/net/lo").exists():
        # On one node the loopback interface always works, whatever its name or firewall.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _read_boot_id() -> str | None:
    """Equal on processes that share a node, and so a clock; None where it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
