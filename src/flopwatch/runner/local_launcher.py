"""Workers on this machine: forked from a warm server, or spawned.

The runner's side of the process boundary. It blocks on the worker's pipe, never spins, and never
imports torch. Whatever becomes of the worker, the runner learns it: an exit code, a signal, or
a silence that is too long. The server may die or stop as well; then its worker is lost with it, and
the next one gets a new server. Nothing is waited for without a limit.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, Self

import psutil

from flopwatch.errors import WorkerError
from flopwatch.runner.worker_death import (
    MemoryWatch,
    describe_exit,
    explain_death,
    explain_hang,
)
from flopwatch.worker.channel import Board, make_board, make_file
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import BrokenMessage, LineReader, Report, Request, encode

LOG_TAIL_BYTES = 4096
LOG_LIMIT_BYTES = 1 << 20
START_S = 300.0
"""For the server to import torch, which is slow from a network disk."""
ENDING_S = 10.0
"""For a process to end that was killed: the system frees its memory first."""
ANSWER_S = 1.0
"""A process that does not write its stack in this time is stopped."""
CAN_FORK_SERVER = sys.platform == "linux"
"""Elsewhere (macOS) system libraries do not survive a fork; workers are spawned there."""


class Hung(Exception):
    """The worker has been silent for too long."""


class ServerLost(WorkerError):
    """The server has ended, or does not answer."""


class Process(Protocol):
    """A worker process, however it was started."""

    pid: int

    def exit_descriptor(self) -> int | None:
        """Becomes readable when the process has ended; None where the system has no such thing."""

    def wait(self, patience_s: float) -> int:
        """Exit code; negative for the signal that ended it. Raises Hung."""

    @property
    def peak_bytes(self) -> int | None:
        """Its largest resident size, once it has ended; None where that is not known."""

    @property
    def loss(self) -> str | None:
        """What became of its server, where the process was lost with that."""


@dataclass(kw_only=True)
class Worker:
    """A running worker, seen from the runner."""

    process: Process
    pipe: IO[bytes]
    """Its reports; reading never waits."""
    log: IO[bytes]
    board_file: IO[bytes]
    board: Board
    watch: MemoryWatch
    exit_code: int | None = None
    is_open: bool = True
    """Whether more reports can come."""
    _reader: LineReader[Report] = field(default_factory=lambda: LineReader(Report))
    _stack_begins_at: int = 0
    """Where its log ended when its stack was requested."""

    def reports(
        self,
        silence_limit_s: float,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        check_others: Callable[[], Sequence[int]] = tuple,
    ) -> Iterator[Report]:
        """Until it ends. Raises Hung when it is silent for too long, though it may have closed its
        pipe, and BrokenMessage.

        `waiting` is entered only while nothing is half done, which is when an interrupt may be
        raised. `check_others` is called before each wait and gives other descriptors to wait for.
        """
        pipe = self.pipe.fileno()
        exited = self.process.exit_descriptor()
        while self.exit_code is None and (self.is_open or exited is not None):
            own = [pipe] if self.is_open else []
            own += [] if exited is None else [exited]
            watched = [*own, *check_others()]
            with waiting():
                ready = poll_readable(watched, silence_limit_s)
            if not ready:
                raise Hung
            if pipe in ready:
                yield from self.receive()
            elif exited in ready and not (self.is_open and poll_readable([pipe], 0)):
                # It has ended, and what it wrote last is read. Nothing more may come, not even the
                # end of the pipe, since a grandchild may hold that open for ever.
                break
        self.finish(silence_limit_s)

    def receive(self) -> Iterator[Report]:
        """What has come, without waiting."""
        try:
            chunk = os.read(self.pipe.fileno(), 1 << 20)
        except BlockingIOError:
            return
        self.is_open = bool(chunk)
        self.trim_log()
        yield from self._reader.read(chunk)

    def terminate(self, patience_s: float = 2.0) -> Iterator[Report]:
        """Ask it to hand over what it has and to stop; then make it stop."""
        _signal(self.process.pid, signal.SIGTERM)
        try:
            yield from self.reports(patience_s)
        except (Hung, BrokenMessage):
            self.kill(patience_s)

    def kill(self, patience_s: float = ENDING_S) -> None:
        if self.exit_code is None:
            _signal(self.process.pid, signal.SIGKILL)
            try:
                self.finish(patience_s)
            except Hung:  # it waits for a device; the signal will end it
                self.exit_code = -signal.SIGKILL

    def request_stack(self) -> None:
        """Have a hung worker write the Python stack it is at to its log."""
        self._stack_begins_at = self.log.seek(0, os.SEEK_END)
        _signal(self.process.pid, signal.SIGUSR1)
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s and not self.read_stack():
            time.sleep(0.01)
        time.sleep(0.2)  # for the rest of it

    def read_stack(self) -> str:
        """What it has written since `request_stack`; nothing where it is stopped."""
        self.log.seek(self._stack_begins_at)
        return self.log.read().decode(errors="replace")

    def explain_hang(self, silence_limit_s: float) -> Failure:
        """Asks it for its stack."""
        self.request_stack()
        stage, log_tail = self.board.read().stage, self.log_tail()
        return Failure("timeout", explain_hang(silence_limit_s, stage, log_tail))

    def explain_death(self) -> Failure:
        """Of a worker that has ended without a report."""
        assert self.exit_code is not None
        if self.process.loss is not None:
            return Failure("crash", f"{self.process.loss} during {self.board.read().stage}")
        shortage = self.watch.explain(self.process.peak_bytes)
        return explain_death(self.exit_code, self.board.read().stage, self.log_tail(), shortage)

    def log_tail(self) -> str:
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - LOG_TAIL_BYTES))
        return self.log.read().decode(errors="replace")

    def close(self) -> None:
        """Forget it; if it still runs, end it."""
        if self.exit_code is None:
            self.kill()
        for file in (self.pipe, self.log, self.board_file):
            file.close()

    def trim_log(self) -> None:
        """Only the end is of interest, and a workload may print a lot."""
        if os.fstat(self.log.fileno()).st_size > LOG_LIMIT_BYTES:
            os.ftruncate(self.log.fileno(), 0)

    @property
    def has_lost_server(self) -> bool:
        return self.process.loss is not None

    def finish(self, patience_s: float) -> None:
        """Wait for its end. Raises Hung."""
        if self.exit_code is None:
            self.exit_code = self.process.wait(patience_s)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # what it may have left behind


class Launcher:
    """Starts workers. A context manager: leaving it ends the server.

    `environment` is set for every worker before anything is imported. With `fork` a server is
    kept warm with the modules in `preload`; otherwise each worker is a fresh interpreter.
    """

    def __init__(
        self, *, environment: dict[str, str], preload: Sequence[str] = ("torch",), fork: bool = True
    ) -> None:
        hold_standard_descriptors()
        self._environment = {**os.environ, **environment}
        self._preload = preload
        self._server = self._start_server() if fork and CAN_FORK_SERVER else None

    def _start_server(self) -> Server:
        return Server(self._environment, self._preload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def server_pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def start(self, request: Request, link: socket.socket | None = None) -> Worker:
        """`link` is one end of what two workers that take turns share."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        log = tempfile.TemporaryFile(mode="a+b")  # appending, so that it can be cut meanwhile
        board_file, board = make_board()
        watch = MemoryWatch(find_available_bytes(request))
        # In a file, not in the packet to the server: a packet is limited to some 200 KB.
        request_file = make_file(encode(request))
        descriptors = [request_file.fileno(), write_end, log.fileno(), board_file.fileno()]
        descriptors += [] if link is None else [link.fileno()]
        process: Process
        try:
            if self._server is not None:
                process = self._fork(descriptors, request.settings.silence_limit_s)
            else:
                process = _spawn(descriptors, self._environment)
        finally:
            os.close(write_end)
            request_file.close()
        return Worker(
            process=process,
            pipe=os.fdopen(read_end, "rb", buffering=0),
            log=log,
            board_file=board_file,
            board=board,
            watch=watch,
        )

    def _fork(self, descriptors: list[int], patience_s: float) -> ForkedProcess:
        assert self._server is not None
        if not self._server.is_lost:
            with suppress(ServerLost):  # since its last worker has ended
                return self._server.fork(descriptors, patience_s)
        self._server = self._start_server()
        return self._server.fork(descriptors, patience_s)


class Server:
    """The runner's handle on the warm server process, by its watcher."""

    def __init__(self, environment: dict[str, str], preload: Sequence[str]) -> None:
        # A packet socket keeps a request and its descriptors together.
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # -P: a file called queue.py in the user's folder is not what torch means.
        program = ["-P", "-m", "flopwatch.worker.server"]
        command = [sys.executable, *program, str(theirs.fileno()), *preload]
        self._process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Its own session: Ctrl-C is for the runner, which decides what becomes of the worker.
            start_new_session=True,
        )
        theirs.close()
        self.is_lost = False
        greeting = self.receive(START_S)
        if "error" in greeting:
            raise WorkerError(
                f"the measuring process could not start ({greeting['error']}); "
                "try: python -c 'import torch'"
            )
        self.pid: int = greeting["pid"]
        self.threads: int | None = greeting["threads"]

    def fork(self, descriptors: list[int], patience_s: float) -> ForkedProcess:
        with suppress(ConnectionError):  # it is gone, as `receive` will find
            socket.send_fds(self._connection, [b"fork"], descriptors)
        answer = self.receive(patience_s)
        if "error" in answer:
            raise WorkerError(
                f"no process could be started to measure in ({answer['error']}); what was measured "
                "is stored, and running again goes on from there"
            )
        return ForkedProcess(pid=answer["pid"], server=self)

    def receive(self, patience_s: float) -> dict[str, Any]:
        """Its next message. Raises ServerLost."""
        if not poll_readable([self.descriptor()], patience_s):
            raise self._lose(f"did not answer for {patience_s:g} s")
        packet = b""
        with suppress(ConnectionError):
            packet = self._connection.recv(1 << 16)
        if not packet:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_S)
            raise self._lose(describe_exit(self._process.poll()))
        content: dict[str, Any] = json.loads(packet)
        return content

    def _lose(self, what: str) -> ServerLost:
        """End what is left of it, and its worker."""
        self.is_lost = True
        self.close()
        return ServerLost(f"the server that starts worker processes {what}")

    def descriptor(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        """End it, with all that it and its workers have started."""
        self._connection.close()
        for end in (self._process.terminate, self._process.kill):
            end()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_S)
                return


@dataclass(kw_only=True)
class ForkedProcess:
    pid: int
    server: Server
    peak_bytes: int | None = None
    loss: str | None = None

    def exit_descriptor(self) -> int | None:
        return self.server.descriptor()

    def wait(self, patience_s: float) -> int:
        try:
            ended = self.server.receive(patience_s)
        except ServerLost as lost:
            self.loss = str(lost)
            return -signal.SIGKILL
        self.peak_bytes = ended["peak_bytes"]
        return int(ended["exit_code"])


@dataclass(kw_only=True)
class SpawnedProcess:
    popen: subprocess.Popen[bytes]
    pid: int
    pid_descriptor: int | None
    peak_bytes: int | None = None
    loss: str | None = None

    def exit_descriptor(self) -> int | None:
        return self.pid_descriptor

    def wait(self, patience_s: float) -> int:
        try:
            code = self.popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise Hung from None
        if self.pid_descriptor is not None:
            os.close(self.pid_descriptor)
            self.pid_descriptor = None
        return code


def find_available_bytes(request: Request) -> int:
    """What the worker of a request can take: ranks of one node share its memory."""
    total_bytes: int = psutil.virtual_memory().total
    limit_bytes = request.settings.memory_limit_bytes or total_bytes
    sharers = 1 if request.place is None else request.place.local_ranks
    return min(total_bytes, limit_bytes) // sharers


def hold_standard_descriptors() -> None:
    """Open those that are closed (``flopwatch run >&-``): a file that got the number of stdout
    would be taken for that by the processes that are started."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # and the lowest number that is free is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _spawn(descriptors: list[int], environment: dict[str, str]) -> SpawnedProcess:
    program = ["-P", "-m", "flopwatch.worker.process"]
    command = [sys.executable, *program, *map(str, descriptors)]
    popen = subprocess.Popen(
        command,
        env=environment,
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    pid_descriptor = os.pidfd_open(popen.pid) if hasattr(os, "pidfd_open") else None
    return SpawnedProcess(popen=popen, pid=popen.pid, pid_descriptor=pid_descriptor)


def poll_readable(descriptors: Sequence[int], patience_s: float) -> set[int]:
    """Those that have something to read, or have ended, once any has."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(patience_s * 1000)}


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(pid, number)
