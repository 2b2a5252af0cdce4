"""The worker processes of a job of several ranks, seen from the runner.

Rank 0 is a worker like any other: what it says is what the runner hears. The other ranks are its
companions, of which the runner wants to know only one thing: whether one of them is in trouble. A
rank that dies leaves the others waiting in a collective, so then all of them end, at once; and
what rank 0 complains of meanwhile (a lost connection) is not the reason.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from flopwatch.records.record import Cause, Status
from flopwatch.runner.local_launcher import Launcher, Worker, poll_readable
from flopwatch.runner.record_builder import explain_death, explain_hang_of_ranks
from flopwatch.worker.channel import Board
from flopwatch.worker.rank_team import Seat

Request = dict[str, Any]
LOCALHOST = "127.0.0.1"
GRACE_S = 3.0
"""Where rank 0 has lost a connection, the rank at the other end has so long to tell its reason; and
where all is done, to leave."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """What became of a rank."""

    rank: int
    status: Status
    reason: str
    cause: Cause | None = None

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.reason}"


class RankLost(Exception):
    """A job has lost one of its ranks."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


class Companion(Protocol):
    """Another rank's process, here or elsewhere."""

    def list_descriptors(self) -> Sequence[int]:
        """Become readable when it is worth a look."""

    def look(self) -> Trouble | None:
        """Without waiting for anything."""

    def has_left(self) -> bool:
        """Whether its process has ended."""

    def ask_where(self) -> str | None:
        """The Python stack that it is at, empty where it does not answer; None where it cannot be
        asked."""

    def kill(self) -> None: ...


class Neighbour:
    """A companion on this machine: a worker of ours."""

    def __init__(self, rank: int, worker: Worker) -> None:
        self.rank = rank
        self._worker = worker
        self._pending = b""
        self._failure: dict[str, Any] | None = None
        self._is_open = True
        os.set_blocking(worker.events_pipe.fileno(), False)

    def list_descriptors(self) -> Sequence[int]:
        exited = self._worker.process.exit_descriptor()
        pipe = [self._worker.events_pipe.fileno()] if self._is_open else []
        return pipe if exited is None or self.has_left() else [*pipe, exited]

    def look(self) -> Trouble | None:
        self._read()
        self._worker.trim_log()
        failure = self._failure
        if failure is not None and not failure.get("is_loss"):
            return Trouble(rank=self.rank, status=failure["status"], reason=failure["reason"])
        exited = self._worker.process.exit_descriptor()
        if self._worker.exit_code is None and exited is not None and poll_readable([exited], 0):
            self._worker.finish()
        code = self._worker.exit_code
        if code is None or code == 0 or failure is not None:
            return None
        stage = self._worker.board.read().stage
        shortage = self._worker.find_shortage()
        status, reason = explain_death(code, stage, self._worker.log_tail(), shortage)
        return Trouble(rank=self.rank, status=status, reason=reason)

    def has_left(self) -> bool:
        return self._worker.exit_code is not None

    def ask_where(self) -> str | None:
        if self.has_left():
            return None
        self._worker.interrogate()
        return self._worker.hear_answer()

    def kill(self) -> None:
        self._worker.close()

    def _read(self) -> None:
        while self._is_open:
            try:
                chunk = os.read(self._worker.events_pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return
            self._is_open = bool(chunk)
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if message["event"] in ("failed", "broken") and self._failure is None:
                    self._failure = {"status": "crash", **message}


@dataclass(kw_only=True)
class Crew:
    """All ranks of a job; what the runner does with a worker, it does with this."""

    leader: Worker
    companions: Sequence[Companion]
    title = "rank 0: "

    @property
    def board(self) -> Board:
        return self.leader.board

    @property
    def exit_code(self) -> int | None:
        return self.leader.exit_code

    def events(
        self,
        silence_limit_s: float,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Iterator[dict[str, Any]]:
        """The leader's messages until it ends. Raises Hung, and RankLost where another rank ends
        before it should."""
        for message in self.leader.events(silence_limit_s, waiting, self._look):
            if message.get("is_loss"):
                self._wait_for_reason()
            yield message
        self._look()

    def terminate(self, patience_s: float = 2.0) -> Iterator[dict[str, Any]]:
        yield from self.leader.terminate(patience_s)
        self.kill()

    def interrogate(self) -> None:
        self.leader.interrogate()

    def explain_hang(self, silence_limit_s: float) -> str:
        """Once the leader was asked: mostly it only waits for another one, which is asked now."""
        others = [companion.ask_where() for companion in self.companions]
        answers = [self.leader.hear_answer(), *others]
        return explain_hang_of_ranks(silence_limit_s, self.board.read().stage, answers)

    def find_shortage(self) -> str | None:
        return self.leader.find_shortage()

    def log_tail(self) -> str:
        return self.leader.log_tail()

    def kill(self) -> None:
        self.leader.kill()
        for companion in self.companions:
            companion.kill()

    def close(self) -> None:
        """Those that have nothing left to do leave by themselves."""
        deadline_s = time.monotonic() + (GRACE_S if self.leader.exit_code == 0 else 0)
        while time.monotonic() < deadline_s and not all(c.has_left() for c in self.companions):
            for companion in self.companions:
                companion.look()
            time.sleep(0.005)
        self.leader.close()
        for companion in self.companions:
            companion.kill()

    def _look(self) -> list[int]:
        """What to wait for next. Raises RankLost."""
        for companion in self.companions:
            trouble = companion.look()
            if trouble is not None:
                raise RankLost(trouble)
        return [d for one in self.companions for d in one.list_descriptors()]

    def _wait_for_reason(self) -> None:
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            self._look()
            time.sleep(0.01)


class Muster(Protocol):
    """Where the other ranks of jobs come from."""

    def call_up(self, request: Request, ranks: int) -> tuple[list[Companion], Seat]:
        """Companions for a leader, and its own seat."""

    def close(self) -> None: ...


class LocalMuster:
    """Ranks on this machine: every one has a launcher of its own, made when it is first needed."""

    def __init__(self, make_launcher: Callable[[], Launcher]) -> None:
        self._make_launcher = make_launcher
        self._launchers: list[Launcher] = []

    def call_up(self, request: Request, ranks: int) -> tuple[list[Companion], Seat]:
        while len(self._launchers) < ranks - 1:
            self._launchers.append(self._make_launcher())
        port = find_free_port()
        leader, *others = [
            Seat(
                rank=rank,
                ranks=ranks,
                local_rank=rank,
                local_ranks=ranks,
                machine_ranks=ranks,
                address=LOCALHOST,
                port=port,
            )
            for rank in range(ranks)
        ]
        companions: list[Companion] = [
            Neighbour(seat.rank, launcher.start({**request, "seat": asdict(seat)}))
            for seat, launcher in zip(others, self._launchers, strict=False)
        ]
        return companions, leader

    def close(self) -> None:
        for launcher in self._launchers:
            launcher.close()


def start_crew(launcher: Launcher, muster: Muster, request: Request, ranks: int) -> Crew:
    companions, seat = muster.call_up(request, ranks)
    return Crew(leader=launcher.start({**request, "seat": asdict(seat)}), companions=companions)


def find_free_port() -> int:
    """One that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
