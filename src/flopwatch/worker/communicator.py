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
    device          send the state of the device
    memory   V      look at its memory
    drop     V      forget it
    leave           all is done
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil

from flopwatch import env
from flopwatch.devices.base import Clock, open_backend
from flopwatch.errors import WorkerError
from flopwatch.settings import Device
from flopwatch.suites.workload import Workload
from flopwatch.worker import agreement
from flopwatch.worker.agreement import Gathered
from flopwatch.worker.limits import BUSY_FACTOR
from flopwatch.worker.messages import RankPlace
from flopwatch.worker.rank_times import Notes, Run, Share, StageTurn, Stop, Turn, Visit

SHORTEST_LEAD_NS, LONGEST_LEAD_NS = 1_000_000, 100_000_000
"""From the announcement of a common start until the start: it must have reached all ranks."""
LEAD_FACTOR = 3.0
"""The announcement may take so many times longer than it usually does."""
SPARE_S = 30.0
"""Ranks time out so much later than the runner does."""
JOIN_S = 300.0
"""Ranks are started together; one that is later than this is taken for lost. On another node it may
have to load torch from a slow disk first."""
CLOSE_S = 10.0
"""For the process group to be destroyed, which may hang; nothing depends on it."""
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
            timeout=timedelta(seconds=BUSY_FACTOR * patience_s + SPARE_S),
        )
        self.place = place
        self._distributed = distributed
        # A rank waits for orders as long as it takes: the runner ends it.
        self._control = distributed.new_group(backend="gloo", timeout=timedelta(days=7))
        self._offset_ns = self._compare_clocks()
        self._lead_ns = self._measure_lead()

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
        start_ns = self._broadcast(self._now_ns() + self._lead_ns)
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
        # Between its phases a check copies results: it has times, but no common run, so that who
        # waited is not known.
        rows: list[list[float]] = self.collect(found.phase_ns, list[float])
        slowest_ns = [max(column) for column in zip(*rows, strict=True)]
        shares = [Share(row, None, None) for row in rows]
        return replace(found, phase_ns=slowest_ns), shares

    def meet(self) -> None:
        """Wait until all ranks have come so far, or one of them is lost."""
        with suppress(Exception):
            self._distributed.barrier(group=self._control)

    def close(self) -> None:
        """When all is done; nccl wants it. Should it hang, it is left alone: the process ends
        without waiting for it."""

        def destroy() -> None:
            with suppress(Exception):
                self._backend.select(self.place.local_rank)  # each thread has its own choice
                self._distributed.destroy_process_group()

        closing = threading.Thread(target=destroy, daemon=True)
        closing.start()
        closing.join(CLOSE_S)

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

    def _measure_lead(self) -> float:
        """How long before a common start it is announced, so that it reaches all ranks in time."""
        delays_ns = []
        for _ in range(PINGS):
            self._distributed.barrier(group=self._control)
            sent_ns = self._broadcast(self._now_ns())
            delays_ns.append(self._now_ns() - sent_ns)
        return choose_lead_ns(self._all_gather(delays_ns, list[float]))

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


def choose_lead_ns(delays_ns: Sequence[Sequence[float]]) -> float:
    """From how long some announcements took to reach each rank.

    >>> choose_lead_ns([[0.0, 0.0], [30_000.0, 50_000.0]])
    1000000.0
    >>> choose_lead_ns([[0.0, 0.0, 0.0], [2e6, 2e6, 9e9]])
    6000000.0
    """
    slowest_ns = max(median(of_rank) for of_rank in delays_ns)
    return float(min(max(LEAD_FACTOR * slowest_ns, SHORTEST_LEAD_NS), LONGEST_LEAD_NS))


def _make_box(size: Any) -> Any:
    """For a message of so many bytes from another rank."""
    import torch

    if not 0 < int(size) <= MOST_BYTES:
        raise WorkerError(f"another rank announced a message of {int(size)} bytes; run it again")
    return torch.empty(int(size), dtype=torch.uint8)


def resolve(clock: Clock, began_ns: float, marks: Sequence[Any], notes: Notes) -> Run:
    """A run, from the marks that were made at its start and after each phase."""

    def find_time_ns(mark: Any) -> float:
        (elapsed_ns,) = clock.elapsed_ns([marks[0], mark])
        return began_ns + elapsed_ns

    def make_stop(visit: Visit) -> Stop:
        left_ns = None if visit.left is None else find_time_ns(visit.left)
        ready_ns = None if visit.began is None else find_time_ns(visit.began)
        span_ns = None
        if ready_ns is not None and visit.ended is not None:
            span_ns = ready_ns, find_time_ns(visit.ended)
        return Stop(find_time_ns(visit.arrived), left_ns, span_ns, ready_ns, visit.exchange)

    def make_turn(turn: Turn) -> StageTurn:
        began_ns, ended_ns = find_time_ns(turn.began), find_time_ns(turn.ended)
        return StageTurn(turn.work, turn.stage, turn.micro_batch, began_ns, ended_ns)

    return Run(
        began_ns,
        tuple(find_time_ns(mark) for mark in marks[1:]),
        None if notes.visits is None else tuple(map(make_stop, notes.visits)),
        tuple(map(make_turn, notes.turns)),
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
        if "EADDRINUSE" in str(error):
            raise PortTaken(
                f"port {place.port}, which was free a moment ago, is in use by another program; "
                "run it again"
            ) from None
        if type(error).__name__.startswith("Dist") and not place.is_one_node:
            raise WorkerError(
                f"ranks could not meet at {place.address}:{place.port} within {JOIN_S:g} s "
                f"({' '.join(str(error).split())[:200]}); open that port between the nodes, or "
                f"set {env.PORT}, the ports after which are used, to where others are open"
            ) from error
        raise


INTERFACE = "GLOO_SOCKET_IFNAME"
PUBLISHED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    INTERFACE,
)
"""Variables that a rank sets for libraries."""


def _publish(place: RankPlace) -> None:
    """What libraries expect to find, as torchrun would have set it."""
    values: tuple[object, ...] = (place.rank, place.ranks, place.local_rank, place.node_ranks)
    values += (place.address, place.port)
    os.environ.update({name: str(value) for name, value in zip(PUBLISHED, values, strict=False)})
    interface = find_interface(place)
    if interface is not None and not os.environ.get(INTERFACE):
        os.environ[INTERFACE] = interface


def find_interface(
    place: RankPlace, addresses: Mapping[str, Sequence[str]] | None = None
) -> str | None:
    """The network interface by which this rank reaches rank 0; None leaves the choice to gloo. That
    would take the address of the host's name, which on many systems is 127.0.1.1, where no other
    node reaches it. `addresses` are this node's, by interface."""
    if place.is_one_node:
        # There the loopback interface always works, whatever its name or firewall.
        return "lo" if Path("/sys/class/net/lo").exists() else None
    own = find_own_address(place.address, place.port)
    if own is None or ip_address(own).is_loopback:
        return None
    for name, known in (_list_addresses() if addresses is None else addresses).items():
        if own in known:
            return name
    return None


def find_own_address(address: str, port: int) -> str | None:
    """This node's address towards another one, or towards one of its own; nothing is sent."""
    with suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    return None


def _list_addresses() -> dict[str, list[str]]:
    """Of this node, by interface."""
    return {
        name: [known.address.partition("%")[0] for known in addresses]
        for name, addresses in psutil.net_if_addrs().items()
    }


def _read_boot_id() -> str | None:
    """Equal on processes that share a node, and so a clock; None where it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
