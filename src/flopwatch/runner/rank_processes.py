"""The worker processes of a job of several ranks, seen from the runner.

Rank 0 is a worker like any other: the runner reads its messages. Of the other ranks the runner only
needs to know whether one has failed. A rank that dies leaves the rest waiting in a collective, so
then all of them are ended at once; and what rank 0 reports meanwhile (a lost connection) is not the
reason.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from flopwatch.runner.local_launcher import Launcher, Worker
from flopwatch.runner.worker_death import explain_hang_of_ranks
from flopwatch.runner.worker_processes import ENDING_S, poll_readable
from flopwatch.worker.channel import Board
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import Broken, BrokenMessage, Failed, RankPlace, RankRequest, Report

LOCALHOST = "127.0.0.1"
GRACE_S = 3.0
"""Where rank 0 has lost a connection, the rank at the other end has so long to report its reason;
and where all is done, to end."""


class RankLost(Exception):
    """A job has lost one of its ranks."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class OtherRankProcess(Protocol):
    """The process of a rank other than 0, on this node or another."""

    rank: int

    def list_descriptors(self) -> Sequence[int]:
        """Become readable when there is something to check."""

    def check(self) -> Failure | None:
        """Without waiting for anything."""

    def has_ended(self) -> bool: ...

    def explain_exit(self) -> Failure | None:
        """Of a process that has ended by itself without a word, as if its work were done: what it
        was doing, for the case that it was not."""

    def request_stack(self) -> None: ...

    def read_stack(self) -> str | None:
        """Its Python stack, once requested: empty where it does not answer, None where it has
        ended."""

    def kill(self) -> None: ...


class LocalRank:
    """A rank on this node: a worker of this process."""

    def __init__(self, rank: int, worker: Worker) -> None:
        self.rank = rank
        self._worker = worker
        self._broken: Broken | None = None

    def list_descriptors(self) -> Sequence[int]:
        exited = self._worker.process.exit_descriptor()
        pipe = [self._worker.pipe.fileno()] if self._worker.is_open else []
        return pipe if exited is None or self.has_ended() else [*pipe, exited]

    def check(self) -> Failure | None:
        worker = self._worker
        try:
            found = [report for report in worker.receive() if isinstance(report, Broken)]
        except BrokenMessage as error:
            return Failure("crash", str(error))
        self._broken = self._broken or next(iter(found), None)
        if self._broken is not None and not self._broken.is_peer_lost:
            return self._broken.failure
        exited = worker.process.exit_descriptor()
        if worker.exit_code is None and exited is not None and poll_readable([exited], 0):
            worker.finish(ENDING_S)
        if not worker.exit_code or self._broken is not None:
            return None
        return worker.explain_death()

    @property
    def has_lost_server(self) -> bool:
        return self._worker.has_lost_server

    @property
    def is_reused(self) -> bool:
        return self._worker.is_reused

    @property
    def pid(self) -> int:
        return self._worker.process.pid

    def has_ended(self) -> bool:
        return self._worker.exit_code is not None

    def explain_exit(self) -> Failure | None:
        is_quiet = self._worker.exit_code == 0 and self._broken is None
        return self._worker.explain_death() if is_quiet else None

    def request_stack(self) -> None:
        if not self.has_ended():
            self._worker.request_stack()

    def read_stack(self) -> str | None:
        return None if self.has_ended() else self._worker.read_stack()

    def kill(self) -> None:
        self._worker.close()


@dataclass(kw_only=True)
class RankWorkers:
    """All ranks of a job, with the methods of a single Worker."""

    rank0: Worker
    other_ranks: Sequence[OtherRankProcess]

    @property
    def board(self) -> Board:
        return self.rank0.board

    @property
    def exit_code(self) -> int | None:
        return self.rank0.exit_code

    @property
    def has_lost_server(self) -> bool:
        """Whether the server of any rank on this node is lost."""
        local = find_local(self.other_ranks)
        return self.rank0.has_lost_server or any(rank.has_lost_server for rank in local)

    @property
    def is_reused(self) -> bool:
        """Whether the process of any rank on this node has served another request before."""
        local = find_local(self.other_ranks)
        return self.rank0.is_reused or any(rank.is_reused for rank in local)

    def reports(
        self,
        silence_limit_s: float,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Iterator[Report]:
        """Those of rank 0 until it ends. Raises Hung, BrokenMessage, and RankLost where another
        rank ends before it should."""
        for report in self.rank0.reports(silence_limit_s, waiting, self._check):
            if isinstance(report, Failed | Broken) and report.is_peer_lost:
                self._wait_for_reason()
            yield report
        self._check()

    def terminate(self, patience_s: float = 2.0) -> Iterator[Report]:
        yield from self.rank0.terminate(patience_s)
        self.kill()

    def expect_end(self) -> None:
        self.rank0.expect_end()

    def explain_hang(self) -> Failure:
        """Mostly rank 0 waits for another rank, so all are asked for their stacks."""
        for rank in self.other_ranks:
            rank.request_stack()
        self.rank0.request_stack()
        others = [rank.read_stack() for rank in self.other_ranks]
        stacks = [self.rank0.read_stack(), *others]
        stage = self.board.read().stage
        return Failure("timeout", explain_hang_of_ranks(self.rank0.silent_s, stage, stacks))

    def explain_death(self) -> Failure:
        return self.rank0.explain_death().of_rank(0)

    def kill(self) -> None:
        self.rank0.kill()
        for rank in self.other_ranks:
            rank.kill()

    def close(self) -> None:
        """Ranks that have nothing left to do end by themselves."""
        deadline_s = time.monotonic() + (GRACE_S if self.rank0.exit_code == 0 else 0)
        while time.monotonic() < deadline_s and not all(r.has_ended() for r in self.other_ranks):
            for rank in self.other_ranks:
                rank.check()
            time.sleep(0.005)
        self.rank0.close()
        for rank in self.other_ranks:
            rank.kill()

    def _check(self) -> list[int]:
        """What to wait for next. Raises RankLost."""
        for rank in self.other_ranks:
            failure = rank.check()
            if failure is not None:
                raise RankLost(failure.of_rank(rank.rank))
        return [d for rank in self.other_ranks for d in rank.list_descriptors()]

    def _wait_for_reason(self) -> None:
        """For why rank 0 has lost another rank."""
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            self._check()
            time.sleep(0.01)
        for rank in self.other_ranks:
            if (early := rank.explain_exit()) is not None:
                raise RankLost(early.of_rank(rank.rank))


def find_local(ranks: Sequence[OtherRankProcess]) -> list[LocalRank]:
    """Those whose workers are processes of this one."""
    return [rank for rank in ranks if isinstance(rank, LocalRank)]


class RankLauncher(Protocol):
    """Starts the other ranks of jobs."""

    def start(self, request: RankRequest, ranks: int) -> tuple[list[OtherRankProcess], RankPlace]:
        """All ranks but 0, and the place of rank 0."""

    def close(self) -> None: ...


class LocalRanks:
    """Ranks on this node: every one has a launcher of its own, made when it is first needed."""

    def __init__(self, make_launcher: Callable[[], Launcher]) -> None:
        self._make_launcher = make_launcher
        self._launchers: list[Launcher] = []

    def start(self, request: RankRequest, ranks: int) -> tuple[list[OtherRankProcess], RankPlace]:
        while len(self._launchers) < ranks - 1:
            self._launchers.append(self._make_launcher())
        port = find_free_port()
        rank0, *others = [
            RankPlace(
                rank=rank,
                ranks=ranks,
                local_rank=rank,
                local_ranks=ranks,
                node_ranks=ranks,
                address=LOCALHOST,
                port=port,
            )
            for rank in range(ranks)
        ]
        started: list[OtherRankProcess] = [
            LocalRank(place.rank, launcher.start(replace(request, place=place)))
            for place, launcher in zip(others, self._launchers, strict=False)
        ]
        return started, rank0

    def close(self) -> None:
        for launcher in self._launchers:
            launcher.close()


def start_ranks(
    launcher: Launcher, rank_launcher: RankLauncher, request: RankRequest, ranks: int
) -> RankWorkers:
    other_ranks, place = rank_launcher.start(request, ranks)
    rank0 = launcher.start(replace(request, place=place))
    rank0.peer_pids = [rank.pid for rank in find_local(other_ranks)]
    return RankWorkers(rank0=rank0, other_ranks=other_ranks)


def find_free_port() -> int:
    """One that no program listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
