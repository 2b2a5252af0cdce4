"""Workers on this machine: forked from a warm server, or spawned.

The runner's side of the process boundary. It blocks on the worker's pipe, never spins, and never
imports torch. Whatever becomes of the worker, the runner learns it: an exit code, a signal, or
a silence that is too long.
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
from flopwatch.runner.worker_death import MemoryWatch, explain_death, explain_hang
from flopwatch.worker.channel import Board, make_board
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import BrokenMessage, LineReader, Report, Request, encode

LOG_TAIL_BYTES = 4096
LOG_LIMIT_BYTES = 1 << 20
ANSWER_S = 1.0
"""A process that does not write its stack in this time is stopped."""
CAN_FORK_SERVER = sys.platform == "linux"
"""Elsewhere (macOS) system libraries do not survive a fork; workers are spawned there."""


class Hung(Exception):
    """The worker has been silent for too long."""


class Process(Protocol):
    """A worker process, however it was started."""

    pid: int

    def exit_descriptor(self) -> int | None:
        """Becomes readable when the process has ended; None where the system has no such thing."""

    def wait(self) -> int:
        """Exit code; negative for the signal that ended it."""

    @property
    def peak_bytes(self) -> int | None:
        """Its largest resident size, once it has ended; None where that is not known."""


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
        """Until it ends. Raises Hung when it is silent for too long, and BrokenMessage.

        `waiting` is entered only while nothing is half done, which is when an interrupt may be
        raised. `check_others` is called before each wait and gives other descriptors to wait for.
        """
        pipe = self.pipe.fileno()
        exited = self.process.exit_descriptor()
        own = [pipe] if exited is None else [pipe, exited]
        while self.is_open:
            watched = [*own, *check_others()]
            with waiting():
                ready = poll_readable(watched, silence_limit_s)
            if not ready:
                raise Hung
            if pipe in ready:
                yield from self.receive()
            elif exited in ready and not poll_readable([pipe], 0):
                # It has ended, and what it wrote last is read. Nothing more may come, not even the
                # end of the pipe, since a grandchild may hold that open for ever.
                break
        self.finish()

    def receive(self) -> list[Report]:
        """What has come, without waiting."""
        try:
            chunk = os.read(self.pipe.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        self.is_open = bool(chunk)
        self.trim_log()
        return self._reader.feed(chunk)

    def terminate(self, patience_s: float = 2.0) -> Iterator[Report]:
        """Ask it to hand over what it has and to stop; then make it stop."""
        _signal(self.process.pid, signal.SIGTERM)
        try:
            yield from self.reports(patience_s)
        except (Hung, BrokenMessage):
            self.kill()

    def kill(self) -> None:
        if self.exit_code is None:
            _signal(self.process.pid, signal.SIGKILL)
            self.finish()

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

    def finish(self) -> None:
        """Wait for its end."""
        if self.exit_code is None:
            self.exit_code = self.process.wait()
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
        self._environment = {**os.environ, **environment}
        self._server = Server(self._environment, preload) if fork and CAN_FORK_SERVER else None

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

    def start(self, request: Request) -> Worker:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        log = tempfile.TemporaryFile(mode="a+b")  # appending, so that it can be cut meanwhile
        board_file, board = make_board()
        watch = MemoryWatch(find_available_bytes(request))
        descriptors = [write_end, log.fileno(), board_file.fileno()]
        process: Process
        try:
            if self._server is not None:
                process = self._server.fork(request, descriptors)
            else:
                process = _spawn(request, descriptors, self._environment)
        finally:
            os.close(write_end)
        return Worker(
            process=process,
            pipe=os.fdopen(read_end, "rb", buffering=0),
            log=log,
            board_file=board_file,
            board=board,
            watch=watch,
        )


class Server:
    """The runner's handle on the warm server process."""

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
        self.pid = self._process.pid
        greeting = self.receive()
        if "error" in greeting:
            raise WorkerError(
                f"the measuring process could not start ({greeting['error']}); "
                "try: python -c 'import torch'"
            )
        self.threads: int | None = greeting.get("threads")

    def fork(self, request: Request, descriptors: list[int]) -> ForkedProcess:
        try:
            socket.send_fds(self._connection, [encode(request)], descriptors)
        except OSError as error:
            raise WorkerError(
                f"the measuring process is gone ({error.strerror}); what was measured is stored, "
                "and running again goes on from there"
            ) from None
        return ForkedProcess(pid=self.receive()["pid"], server=self)

    def receive(self) -> dict[str, Any]:
        packet = self._connection.recv(1 << 16)
        if not packet:
            code = self._process.wait()
            raise WorkerError(f"the measuring process ended unexpectedly (exit code {code})")
        content: dict[str, Any] = json.loads(packet)
        return content

    def descriptor(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        """Closing the connection ends it."""
        self._connection.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(kw_only=True)
class ForkedProcess:
    pid: int
    server: Server
    peak_bytes: int | None = None

    def exit_descriptor(self) -> int | None:
        return self.server.descriptor()

    def wait(self) -> int:
        ended = self.server.receive()
        self.peak_bytes = ended["peak_bytes"]
        return int(ended["exit_code"])


@dataclass(kw_only=True)
class SpawnedProcess:
    popen: subprocess.Popen[bytes]
    pid: int
    pid_descriptor: int | None
    peak_bytes: int | None = None

    def exit_descriptor(self) -> int | None:
        return self.pid_descriptor

    def wait(self) -> int:
        code = self.popen.wait()
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


def _spawn(request: Request, descriptors: list[int], environment: dict[str, str]) -> SpawnedProcess:
    program = ["-P", "-m", "flopwatch.worker.process"]
    command = [sys.executable, *program, *map(str, descriptors)]
    popen = subprocess.Popen(
        command,
        env=environment,
        pass_fds=descriptors,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert popen.stdin is not None
    with popen.stdin:
        popen.stdin.write(encode(request))
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
