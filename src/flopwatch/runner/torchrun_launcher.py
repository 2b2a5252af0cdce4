"""Ranks that torchrun has started, or a scheduler that sets the same variables.

Then there are as many flopwatch processes as ranks, on one node or on several, all with the same
command line. That of rank 0 is the runner. The other ranks connect to it, and each starts a worker
when the runner asks for it, so that a rank that dies is a record here too, and the run goes on.

    torchrun --nproc-per-node 8 -m flopwatch run training ...

They exchange messages (`worker.messages`) over TCP, at MASTER_ADDR at the port after MASTER_PORT,
which torchrun uses itself; FLOPWATCH_PORT names another one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from msgspec import structs

from flopwatch import env
from flopwatch.errors import UsageError, WorkerError
from flopwatch.runner.local_launcher import Launcher, poll_readable
from flopwatch.runner.rank_processes import (
    LOCALHOST,
    LocalRank,
    OtherRankProcess,
    find_free_port,
)
from flopwatch.worker.communicator import JOIN_S
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import (
    BrokenMessage,
    End,
    Hello,
    LineReader,
    RankEnded,
    RankFailed,
    RankMessage,
    RankPlace,
    RankRequest,
    Start,
    Stop,
    Welcome,
    encode,
)

IDLE_S = 60.0
GONE = "its flopwatch process is gone"
KEEP_ALIVE = {(socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1}
"""The loss of a node is noticed after half a minute."""
if hasattr(socket, "TCP_KEEPIDLE"):
    KEEP_ALIVE |= {
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 10,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
    }


def find_place(environ: env.Environ = None) -> RankPlace | None:
    """This process in a job of several ranks; None where there are none. The port is the one that
    flopwatch uses."""
    if env.read("WORLD_SIZE", environ) in ("", "1") or not env.read("RANK", environ):
        return None
    rank, ranks = _read_number(environ, "RANK"), _read_number(environ, "WORLD_SIZE")
    if env.read(env.PORT, environ):
        port = _read_number(environ, env.PORT)
    else:
        port = _read_number(environ, "MASTER_PORT") + 1
    local_ranks = _read_number(environ, "LOCAL_WORLD_SIZE")
    return RankPlace(
        rank=rank,
        ranks=ranks,
        local_rank=_read_number(environ, "LOCAL_RANK"),
        local_ranks=local_ranks,
        node_ranks=local_ranks,
        address=env.read("MASTER_ADDR", environ) or LOCALHOST,
        port=port,
    )


def _read_number(environ: env.Environ, name: str) -> int:
    text = env.read(name, environ)
    if not text.isdecimal():
        raise UsageError(
            f"the environment says that this is one of several ranks, but {name} is {text!r} and "
            "not a number; start flopwatch with torchrun, or set all variables that torchrun sets"
        )
    return int(text)


class Line:
    """A connection that carries messages. One that cannot be read ends it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        for option, value in KEEP_ALIVE.items():
            connection.setsockopt(*option, value)
        self._reader: LineReader[RankMessage] = LineReader(RankMessage)
        self.is_open = True

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: RankMessage) -> None:
        try:
            self._connection.sendall(encode(message))
        except OSError:
            self.is_open = False

    def receive(self) -> list[RankMessage]:
        """What has come, without waiting; once the other end is gone, `is_open` is False."""
        messages: list[RankMessage] = []
        while self.is_open and poll_readable([self.fileno()], 0):
            try:
                chunk = self._connection.recv(1 << 16)
                messages += self._reader.feed(chunk)
            except (OSError, BrokenMessage):
                chunk = b""
            self.is_open = bool(chunk)
        return messages

    def close(self) -> None:
        self.is_open = False
        self._connection.close()


class RemoteRank:
    """A rank whose worker another flopwatch process has started, on this node or on another."""

    def __init__(self, rank: int, line: Line, job: int) -> None:
        self.rank = rank
        self._line = line
        self._job = job
        self._has_ended = False

    def list_descriptors(self) -> Sequence[int]:
        return [self._line.fileno()] if self._line.is_open and not self._has_ended else []

    def check(self) -> Failure | None:
        for message in self._line.receive():
            if not isinstance(message, RankFailed | RankEnded) or message.job != self._job:
                continue  # of a job that is over
            if isinstance(message, RankFailed):
                return message.failure
            self._has_ended = True
        if not self._line.is_open and not self._has_ended:
            # No answer to what was asked: it can be measured once ranks are there again.
            return Failure("skipped", GONE, "rank-lost")
        return None

    def has_ended(self) -> bool:
        return self._has_ended or not self._line.is_open

    def read_stack(self) -> str | None:
        return None

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
        with closing(listen(place)) as listener:
            self._welcome(listener, join_s)

    def start(self, request: RankRequest, ranks: int) -> tuple[list[OtherRankProcess], RankPlace]:
        lost = [rank for rank in range(1, ranks) if not self._lines[rank].is_open]
        if lost:
            raise WorkerError(
                f"rank {lost[0]}: {GONE}; what was measured is stored, and running again goes on "
                "from there"
            )
        self._job += 1
        rank0, *others = assign(self._places, ranks, find_free_port())
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
        deadline_s = time.monotonic() + join_s
        while len(self._lines) < self._place.ranks - 1:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not poll_readable([listener.fileno()], left_s):
                missing = sorted(set(range(1, self._place.ranks)) - set(self._lines))
                raise WorkerError(
                    f"rank {missing[0]} of {self._place.ranks} did not connect within {join_s:g} "
                    f"s; can it reach {self._place.address}:{self._place.port}? {env.PORT} names "
                    "another port"
                )
            line = Line(listener.accept()[0])
            hello = _await_hello(line)
            awaited = set(range(1, self._place.ranks)) - set(self._lines)
            if hello is None or hello.ranks != self._place.ranks or hello.rank not in awaited:
                line.close()  # of another job
                continue
            line.send(Welcome())
            self._lines[hello.rank] = line
            self._places[hello.rank] = hello


def assign(places: Mapping[int, RankPlace], ranks: int, port: int) -> list[RankPlace]:
    """Places of the first ranks, for one job."""
    assigned = [replace(places[rank], rank=rank, ranks=ranks, port=port) for rank in range(ranks)]
    assigned = [replace(place, local_ranks=_count_local(place, assigned)) for place in assigned]
    numbers = {place.local_ranks for place in assigned}
    node_ranks = numbers.pop() if len(numbers) == 1 else ranks
    return [replace(place, node_ranks=node_ranks) for place in assigned]


def _await_hello(line: Line) -> RankPlace | None:
    poll_readable([line.fileno()], 5.0)
    first = next(iter(line.receive()), None)
    return first.place if isinstance(first, Hello) else None


def _count_local(place: RankPlace, places: Sequence[RankPlace]) -> int:
    """Ranks of the same node that take part: local ranks are numbered from 0 on every node, and
    nodes are filled one after the other."""
    first = place.rank - place.local_rank
    return sum(first <= other.rank < first + place.local_ranks for other in places)


def listen(place: RankPlace) -> socket.socket:
    """On the loopback interface where all ranks are on this node; else on all interfaces, since the
    name of this node may resolve to another of its addresses elsewhere."""
    is_local = place.local_ranks == place.ranks
    try:
        if is_local:
            return socket.create_server((LOCALHOST, place.port), backlog=place.ranks)
        dual = socket.has_dualstack_ipv6()
        return socket.create_server(
            ("", place.port),
            family=socket.AF_INET6 if dual else socket.AF_INET,
            dualstack_ipv6=dual,
            backlog=place.ranks,
        )
    except OSError as error:
        raise UsageError(
            f"port {place.port} cannot be listened on ({error.strerror or error}); set {env.PORT} "
            "to a free one, the same for all ranks"
        ) from None


def connect(place: RankPlace, join_s: float = JOIN_S) -> Line:
    address = LOCALHOST if place.local_ranks == place.ranks else place.address
    deadline_s = time.monotonic() + join_s
    reason = "no answer"
    while time.monotonic() < deadline_s:
        try:
            connection = socket.create_connection((address, place.port), timeout=5.0)
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(0.2)
            continue
        connection.settimeout(None)
        line = Line(connection)
        line.send(Hello(place=place))
        poll_readable([line.fileno()], max(0.0, deadline_s - time.monotonic()))
        if any(isinstance(message, Welcome) for message in line.receive()):
            return line  # it is the runner of this job that listens
        line.close()
        reason = "another program listens there"
        time.sleep(0.2)  # it may be the runner of a job that is just ending
    raise WorkerError(
        f"rank 0 cannot be reached at {address}:{place.port} ({reason}); {env.PORT} names another "
        "port"
    )


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
            self._line.send(RankEnded(job=self._job))
            self._end_worker()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
