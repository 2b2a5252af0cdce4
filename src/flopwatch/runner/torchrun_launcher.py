"""Ranks that torchrun has started, or a scheduler that sets the same variables, or srun.

Then there are as many flopwatch processes as ranks, on one node or on several, all with the same
command line. That of rank 0 is the runner. The other ranks connect to it, and each starts a worker
when the runner asks for it, so that a rank that dies is a record here too, and the run goes on.

    torchrun --nproc-per-node 8 -m flopwatch run training ...

They exchange messages (`worker.messages`) over TCP, at MASTER_ADDR at the port after MASTER_PORT,
which torchrun uses itself; FLOPWATCH_PORT names another one. Messages are signed, so that nobody
else is obeyed (`rank_connection`), and once all ranks are there rank 0 listens no longer.

The workers of a job meet at an address and a port of their own (`rank_addresses`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace

from msgspec import structs

from flopwatch import env
from flopwatch.errors import UsageError, WorkerError
from flopwatch.runner.local_launcher import Launcher
from flopwatch.runner.rank_addresses import (
    LAST_PORT,
    MOST_STRANGERS,
    choose_address,
    find_job_port,
    listen,
)
from flopwatch.runner.rank_connection import Line, find_key
from flopwatch.runner.rank_processes import LOCALHOST, LocalRank, OtherRankProcess
from flopwatch.runner.srun_place import find_step_place
from flopwatch.runner.worker_processes import poll_readable
from flopwatch.worker.communicator import JOIN_S
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import (
    End,
    Hello,
    JobMessage,
    RankEnded,
    RankFailed,
    RankPlace,
    RankRequest,
    RankStack,
    ReadStack,
    Start,
    Stop,
    Welcome,
)

IDLE_S = 60.0
HANDSHAKE_S = 10.0
"""Who has not proved by then to be of this job is not waited for."""
STACK_S = 5.0
"""Longer than a rank takes to read the stack of its worker."""
MOST_RANKS = 1_000_000
SAME_KEY = (
    f"where nodes do not share a home, set {env.SECRET} on all of them to the same text, which "
    "only you know"
)
GONE = "its flopwatch process is gone"


def find_place(environ: env.Environ = None) -> RankPlace | None:
    """This process in a job of several ranks, started by torchrun or else by srun; None where there
    are none. The port is the one that flopwatch uses."""
    if not env.read("RANK", environ):
        return find_step_place(environ)
    if env.read("WORLD_SIZE", environ) in ("", "1"):
        return None
    ranks = _read_number(environ, "WORLD_SIZE", 1, MOST_RANKS)
    local_ranks = _read_number(environ, "LOCAL_WORLD_SIZE", 1, ranks)
    if env.read(env.PORT, environ):
        port = _read_number(environ, env.PORT, 1, LAST_PORT)
    else:
        master_port = _read_number(environ, "MASTER_PORT", 1, LAST_PORT)
        port = master_port + 1 if master_port < LAST_PORT else master_port - 1
    return RankPlace(
        rank=_read_number(environ, "RANK", 0, ranks - 1),
        ranks=ranks,
        local_rank=_read_number(environ, "LOCAL_RANK", 0, local_ranks - 1),
        local_ranks=local_ranks,
        node_ranks=local_ranks,
        address=env.read("MASTER_ADDR", environ) or LOCALHOST,
        port=port,
    )


def _read_number(environ: env.Environ, name: str, lowest: int, highest: int) -> int:
    text = env.read(name, environ)
    # The length first: Python refuses to convert thousands of digits.
    if text.isdecimal() and len(text) < 10 and lowest <= int(text) <= highest:
        return int(text)
    raise UsageError(
        f"the environment says that this is one of several ranks, but {name} is {text[:40]!r} and "
        f"not a number from {lowest} to {highest}; start flopwatch with torchrun, or set all "
        "variables that torchrun sets"
    )


class RemoteRank:
    """A rank whose worker another flopwatch process has started, on this node or on another."""

    def __init__(self, rank: int, line: Line, job: int) -> None:
        self.rank = rank
        self._line = line
        self._job = job
        self._has_ended = False
        self._failure: Failure | None = None
        self._early: Failure | None = None
        self._stack: str | None = None
        self._stack_deadline_s = 0.0

    def list_descriptors(self) -> Sequence[int]:
        return [self._line.fileno()] if not self.has_ended() else []

    def check(self) -> Failure | None:
        for message in self._line.receive():
            if not isinstance(message, JobMessage) or message.job != self._job:
                continue  # of a job that is over
            if isinstance(message, RankFailed):
                self._failure = message.failure
            elif isinstance(message, RankStack):
                self._stack = message.stack
            elif isinstance(message, RankEnded):
                self._has_ended, self._early = True, message.early
        if self._failure is None and not self._line.is_open and not self._has_ended:
            # No answer to what was asked: it can be measured once ranks are there again.
            return Failure("skipped", GONE, "rank-lost")
        return self._failure

    def has_ended(self) -> bool:
        return self._has_ended or not self._line.is_open

    def explain_exit(self) -> Failure | None:
        return self._early

    def request_stack(self) -> None:
        self._stack = None
        self._stack_deadline_s = time.monotonic() + STACK_S
        if not self.has_ended():
            self._line.send(ReadStack(job=self._job))

    def read_stack(self) -> str | None:
        while self._stack is None and not self.has_ended():
            left_s = self._stack_deadline_s - time.monotonic()
            if left_s <= 0:
                return ""
            poll_readable([self._line.fileno()], left_s)
            self.check()
        return self._stack

    def kill(self) -> None:
        if not self.has_ended():
            self._line.send(Stop(job=self._job))


class TorchrunRanks:
    """All ranks of a job, at its rank 0."""

    def __init__(self, place: RankPlace, join_s: float = JOIN_S) -> None:
        self._place = place
        self._lines: dict[int, Line] = {}
        self._places = {0: place}
        self._job = 0
        self._unknown: dict[Line, float] = {}
        """Connections that have not proved yet to be of this job, oldest first, and until when
        they may."""
        try:
            with closing(listen(place)) as listener:
                self._welcome(listener, join_s)
        except BaseException:
            self.close()
            raise
        finally:
            for line in self._unknown:
                line.close()

    def start(self, request: RankRequest, ranks: int) -> tuple[list[OtherRankProcess], RankPlace]:
        lost = [rank for rank in range(1, ranks) if not self._lines[rank].is_open]
        if lost:
            raise WorkerError(
                f"rank {lost[0]}: {GONE}; what was measured is stored, and running again goes on "
                "from there"
            )
        self._job += 1
        used = [self._lines[rank].find_own_address() for rank in range(1, ranks)]
        address = choose_address(self._place, used)
        port = find_job_port(self._place, self._job)
        rank0, *others = assign(self._places, ranks, address, port)
        started: list[OtherRankProcess] = []
        for place in others:
            line = self._lines[place.rank]
            line.send(Start(job=self._job, request=structs.replace(request, place=place)))
            started.append(RemoteRank(place.rank, line, self._job))
        return started, rank0

    def close(self) -> None:
        for line in self._lines.values():
            line.send(End())
            line.close()

    def _welcome(self, listener: socket.socket, join_s: float) -> None:
        """Until all ranks have connected. Anybody can: no one is waited for alone, and whoever
        does not prove to be of this job is forgotten."""
        deadline_s = time.monotonic() + join_s
        job_key = find_key(self._place)
        unknown, forged = self._unknown, 0
        while missing := [rank for rank in range(1, self._place.ranks) if rank not in self._lines]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise WorkerError(self._explain_missing(missing[0], join_s, forged))
            waiting = [listener.fileno(), *(line.fileno() for line in unknown)]
            ready = poll_readable(waiting, min(1.0, left_s))
            if listener.fileno() in ready:
                with suppress(OSError):  # it is gone again
                    line = Line(listener.accept()[0], job_key, "runner")
                    unknown[line] = time.monotonic() + HANDSHAKE_S
            for line in [line for line in unknown if line.fileno() in ready]:
                if self._admit(line):
                    del unknown[line]
            for line, end_s in list(unknown.items()):
                is_late = time.monotonic() > end_s or len(unknown) > MOST_STRANGERS
                if is_late or not line.is_open:
                    forged += line.was_forged
                    line.close()
                    del unknown[line]

    def _admit(self, line: Line) -> bool:
        for message in line.receive():
            if isinstance(message, Hello) and 0 < message.place.rank < self._place.ranks:
                rank = message.place.rank
                if rank in self._lines:  # it has given up that connection
                    self._lines[rank].close()
                line.send(Welcome())
                self._lines[rank], self._places[rank] = line, message.place
                return True
        return False

    def _explain_missing(self, rank: int, join_s: float, forged: int) -> str:
        begin = f"rank {rank} of {self._place.ranks} did not connect within {join_s:g} s"
        if forged:
            return f"{begin}, and what did connect has another key; {SAME_KEY}"
        return (
            f"{begin}; can it reach {self._place.address}:{self._place.port}? {env.PORT} names "
            "another port"
        )


def assign(places: Mapping[int, RankPlace], ranks: int, address: str, port: int) -> list[RankPlace]:
    """Places of the first ranks, for one job, which meets there."""
    assigned = [
        replace(places[rank], rank=rank, ranks=ranks, address=address, port=port)
        for rank in range(ranks)
    ]
    assigned = [replace(place, local_ranks=_count_local(place, assigned)) for place in assigned]
    numbers = {place.local_ranks for place in assigned}
    node_ranks = numbers.pop() if len(numbers) == 1 else ranks
    return [replace(place, node_ranks=node_ranks) for place in assigned]


def _count_local(place: RankPlace, places: Sequence[RankPlace]) -> int:
    """Ranks of the same node that take part: local ranks are numbered from 0 on every node, and
    nodes are filled one after the other."""
    first = place.rank - place.local_rank
    return sum(first <= other.rank < first + place.local_ranks for other in places)


def connect(place: RankPlace, join_s: float = JOIN_S) -> Line:
    address = LOCALHOST if place.is_one_node else place.address
    job_key = find_key(place)
    deadline_s = time.monotonic() + join_s
    reason, advice = "no answer", f"{env.PORT} names another port"
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((address, place.port), timeout=min(5.0, left_s))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            line = Line(connection, job_key, "rank")
            if _is_welcome(line, place, min(HANDSHAKE_S, left_s)):
                return line
            line.close()
            reason = "what listens there is not of this job, or has another key"
            advice = f"{SAME_KEY}; {env.PORT} names another port"
        time.sleep(0.2)  # it may be the runner of a job that is just ending
    raise WorkerError(f"rank 0 cannot be reached at {address}:{place.port} ({reason}); {advice}")


def _is_welcome(line: Line, place: RankPlace, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    has_greeted = False
    while line.is_open and (left_s := deadline_s - time.monotonic()) > 0:
        poll_readable([line.fileno()], left_s)
        if any(isinstance(message, Welcome) for message in line.receive()):
            return True
        if line.can_sign and not has_greeted:
            line.send(Hello(place=place))
            has_greeted = True
    return False


class RankServer:
    """Starts and watches the workers of one rank other than 0, for the runner."""

    def __init__(
        self, line: Line, rank: int, make_launcher: Callable[[RankRequest], Launcher]
    ) -> None:
        self._line = line
        self._rank = rank
        self._make_launcher = make_launcher
        self._launcher: Launcher | None = None
        self._worker: LocalRank | None = None
        self._job = 0

    def serve(self) -> None:
        """Until the runner says that all is done, or is gone."""
        while self._line.is_open:
            watched = [] if self._worker is None else self._worker.list_descriptors()
            poll_readable([self._line.fileno(), *watched], IDLE_S)
            self._check_worker()
            for message in self._line.receive():
                if isinstance(message, End):
                    return
                if isinstance(message, Start):
                    self._start(message)
                elif isinstance(message, ReadStack) and message.job == self._job:
                    self._send_stack()
                elif isinstance(message, Stop) and message.job == self._job:
                    self._end_worker()
                    self._line.send(RankEnded(job=self._job))

    def close(self) -> None:
        self._end_worker()
        if self._launcher is not None:
            self._launcher.close()

    def _start(self, message: Start) -> None:
        self._end_worker()
        self._job, request = message.job, message.request
        self._launcher = self._launcher or self._make_launcher(request)
        self._worker = LocalRank(self._rank, self._launcher.start(request))

    def _check_worker(self) -> None:
        if self._worker is None:
            return
        failure = self._worker.check()
        if failure is not None:
            self._line.send(RankFailed(job=self._job, failure=failure))
        if failure is not None or self._worker.has_ended():
            self._line.send(RankEnded(job=self._job, early=self._worker.explain_exit()))
            self._end_worker()

    def _send_stack(self) -> None:
        if self._worker is not None:
            self._worker.request_stack()
            self._line.send(RankStack(job=self._job, stack=self._worker.read_stack() or ""))

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
