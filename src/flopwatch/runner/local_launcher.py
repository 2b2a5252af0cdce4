"""Workers on this machine: forked from a warm server, or spawned.

The runner's side of the process boundary. It blocks on the worker's pipe, never spins, and never
imports torch. Whatever becomes of the worker, the runner learns it: an exit code, a signal, or
a silence that is too long. The server may die or stop as well; then its worker is lost with it, and
the next one gets a new server. A process that was spawned is kept for further requests as long as
nothing goes wrong in it. Nothing is waited for without a limit.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Self

import psutil

from flopwatch.runner.activity import Usage, is_any_stopped, is_at_work, read_usage
from flopwatch.runner.worker_death import MemoryWatch, explain_death, explain_hang
from flopwatch.runner.worker_processes import (
    ANSWER_S,
    ENDING_S,
    START_S,
    ForkedProcess,
    Hung,
    Process,
    Server,
    ServerLost,
    SpawnedProcess,
    poll_readable,
    spawn,
)
from flopwatch.worker.channel import Board, make_board, make_file
from flopwatch.worker.failure import Failure
from flopwatch.worker.limits import BUSY_FACTOR
from flopwatch.worker.messages import BrokenMessage, LineReader, Report, Request, Served, encode

LOG_TAIL_BYTES = 4096
LOG_LIMIT_BYTES = 1 << 20
LEAVING_S = 30.0
"""For a process to end by itself, once its answer is there."""
STARTING = ("starting", "joining")
"""Stages whose limit is never shorter than START_S: it is not the measured code that takes long,
but loading libraries, in this process or in that of another rank."""
CAN_FORK_SERVER = sys.platform == "linux"
"""Elsewhere (macOS) system libraries do not survive a fork; workers are spawned there."""


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
    is_reused: bool = False
    """Whether its process has served other requests before."""
    peer_pids: Sequence[int] = ()
    """Of other ranks on this node, which work on the same."""
    silent_s: float = 0.0
    """How long it has said nothing."""
    _reader: LineReader[Report] = field(default_factory=lambda: LineReader(Report))
    _is_answered: bool = False
    _usage: Usage | None = None
    """When it was last silent for long."""
    _stack_begins_at: int = 0
    """Where its log ended when its stack was requested."""

    def reports(
        self,
        silence_limit_s: float,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        check_others: Callable[[], Sequence[int]] = tuple,
        *,
        is_strict: bool = False,
    ) -> Iterator[Report]:
        """Until it ends, or has served its request. Raises Hung when it is silent for too long,
        though it may have closed its pipe, and BrokenMessage.

        `waiting` is entered only while nothing is half done, which is when an interrupt may be
        raised. `check_others` is called before each wait and gives other descriptors to wait for.
        The limit is that of a worker that measures: it is longer while one starts, builds or
        compiles, unless it `is_strict`.
        """
        pipe = self.pipe.fileno()
        exited = self.process.exit_descriptor()
        while self.exit_code is None and (self.is_open or exited is not None):
            own = [pipe] if self.is_open else []
            own += [] if exited is None else [exited]
            watched = [*own, *check_others()]
            if self._is_answered:
                silence_limit_s, is_strict = min(silence_limit_s, LEAVING_S), True
            with waiting():
                # Half of the limit, so that two looks at the process show whether it works.
                ready = poll_readable(watched, silence_limit_s / 2)
            self.silent_s = 0.0 if ready else self.silent_s + silence_limit_s / 2
            if not ready and not self._may_be_silent(silence_limit_s, is_strict=is_strict):
                raise Hung
            if pipe in ready:
                yield from self.receive()
            elif exited in ready and not (self.is_open and poll_readable([pipe], 0)):
                # It has ended, and what it wrote last is read. Nothing more may come, not even the
                # end of the pipe, since a grandchild may hold that open for ever.
                break
        self.finish(silence_limit_s)

    def _may_be_silent(self, limit_s: float, *, is_strict: bool) -> bool:
        if is_strict:
            return self.silent_s < limit_s
        stage = self.board.read().stage
        pids = [self.process.pid, *self.peer_pids]
        before, self._usage = self._usage, read_usage(pids)
        if stage in STARTING and not is_any_stopped(pids):
            limit_s = max(limit_s, START_S)
        if self.silent_s < limit_s:
            return True
        is_working = before is not None and is_at_work(before, self._usage, stage)
        return is_working and self.silent_s < BUSY_FACTOR * limit_s

    def receive(self) -> Iterator[Report]:
        """What has come, without waiting."""
        try:
            chunk = os.read(self.pipe.fileno(), 1 << 20)
        except BlockingIOError:
            return
        self.is_open = bool(chunk)
        self.trim_log()
        for report in self._reader.read(chunk):
            if isinstance(report, Served):
                self.process.keep()
                self.exit_code = 0
            else:
                yield report

    def terminate(self, patience_s: float = 2.0) -> Iterator[Report]:
        """Ask it to hand over what it has and to stop; then make it stop."""
        _signal(self.process.pid, signal.SIGTERM)
        try:
            yield from self.reports(patience_s, is_strict=True)
        except (Hung, BrokenMessage):
            self.kill(patience_s)

    def expect_end(self) -> None:
        """It has answered, and has only a little time left to end."""
        self._is_answered = True

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

    def explain_hang(self) -> Failure:
        """Asks it for its stack."""
        self.request_stack()
        stage, log_tail = self.board.read().stage, self.log_tail()
        return Failure("timeout", explain_hang(self.silent_s, stage, log_tail))

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
    kept warm with the modules in `preload`; otherwise workers are fresh interpreters. These are
    used again for later requests that they suit, unless `keep` is False; where workers would be
    forked, if the system could do that, each is a process of its own.
    """

    def __init__(
        self,
        *,
        environment: dict[str, str],
        preload: Sequence[str] = ("torch",),
        fork: bool = True,
        keep: bool = True,
    ) -> None:
        hold_standard_descriptors()
        self._environment = {**os.environ, **environment}
        self._preload = preload
        self._server = self._start_server() if fork and CAN_FORK_SERVER else None
        self._keeps = keep and not fork
        self._last: SpawnedProcess | None = None

    def _start_server(self) -> Server:
        return Server(self._environment, self._preload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._last is not None:
            self._last.end()

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
                process = self._spawn(descriptors, is_fresh=request.fresh, is_alone=link is None)
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
            is_reused=process.is_reused,
        )

    def _spawn(self, descriptors: list[int], *, is_fresh: bool, is_alone: bool) -> SpawnedProcess:
        """The last process, where it waits for a request and takes this one; else a fresh one. One
        that takes turns with another serves nobody else."""
        last = self._last
        if last is not None:
            if is_alone and not is_fresh and last.take(descriptors):
                return last
            last.end()
        self._last = spawn(descriptors, self._environment, is_kept=self._keeps and is_alone)
        return self._last

    def _fork(self, descriptors: list[int], patience_s: float) -> ForkedProcess:
        assert self._server is not None
        if not self._server.is_lost:
            with suppress(ServerLost):  # since its last worker has ended
                return self._server.fork(descriptors, patience_s)
        self._server = self._start_server()
        return self._server.fork(descriptors, patience_s)


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


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(pid, number)
