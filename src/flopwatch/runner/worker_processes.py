"""The processes of workers, and how they are started: forked from a warm server, or spawned."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from flopwatch.errors import WorkerError
from flopwatch.runner.activity import is_at_work, read_usage
from flopwatch.runner.worker_death import describe_exit
from flopwatch.worker.channel import NO_CONTROL, TAKEN
from flopwatch.worker.limits import BUSY_FACTOR
from flopwatch.worker.messages import BrokenMessage

START_S = 300.0
"""For a process to import torch, which is slow from a network disk; more where it can be seen at
work."""
ENDING_S = 10.0
"""For a process to end that was killed: the system frees its memory first."""
TAKING_S = 10.0
"""For a process that waits for a request to take one; without an answer it is replaced."""
ANSWER_S = 1.0
"""A process that does not write its stack in this time is stopped."""


class Hung(Exception):
    """The worker has been silent for too long."""


class ServerLost(WorkerError):
    """The server has ended, or does not answer."""


class Process(Protocol):
    """A worker process, however it was started."""

    pid: int
    is_reused: bool
    """Whether it has served another request before."""

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

    def keep(self) -> None:
        """It says that it can serve another request. Raises BrokenMessage where it cannot."""


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
        greeting = self._await_greeting()
        if "error" in greeting:
            raise WorkerError(
                f"the measuring process could not start ({greeting['error']}); "
                "try: python -c 'import torch'"
            )
        self.pid: int = greeting["pid"]
        self.threads: int | None = greeting["threads"]

    def _await_greeting(self) -> dict[str, Any]:
        waited_s, usage = 0.0, read_usage([self._process.pid])
        while not poll_readable([self.descriptor()], START_S):
            waited_s += START_S
            before, usage = usage, read_usage([self._process.pid])
            is_working = is_at_work(before, usage, "starting")
            if not is_working or waited_s >= BUSY_FACTOR * START_S:
                raise self._lose(f"did not answer for {waited_s:g} s")
        return self.receive(START_S)

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
    is_reused: bool = False

    def exit_descriptor(self) -> int | None:
        return self.server.descriptor()

    def keep(self) -> None:
        raise BrokenMessage("a process that was forked serves one request")

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
    control: socket.socket | None
    """Where further requests go to; None where it serves one only."""
    peak_bytes: int | None = None
    loss: str | None = None
    is_reused: bool = False
    is_idle: bool = False
    """Whether it waits for a request."""

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
        if self.control is not None:
            self.control.close()
        return code

    def keep(self) -> None:
        if self.control is None:
            raise BrokenMessage("a process that takes turns serves one request")
        self.is_idle = True

    def take(self, descriptors: list[int]) -> bool:
        """Whether it serves another request, with these descriptors."""
        if not self.is_idle or self.control is None:
            return False
        self.is_idle = False
        answer = b""
        with suppress(OSError):  # it has ended
            socket.send_fds(self.control, [TAKEN], descriptors)
            if poll_readable([self.control.fileno()], TAKING_S):
                answer = self.control.recv(len(TAKEN))
        self.is_reused = answer == TAKEN
        self.is_idle = not self.is_reused
        return self.is_reused

    def end(self) -> None:
        """Where it waits for a request. A worker ends it otherwise."""
        if not self.is_idle or self.control is None:
            return
        self.is_idle = False
        self.control.close()
        with suppress(Hung):
            self.wait(ANSWER_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # itself, and what it may have left behind
        with suppress(Hung):  # it waits for a device; the signal will end it
            self.wait(ENDING_S)


def spawn(descriptors: list[int], environment: dict[str, str], *, is_kept: bool) -> SpawnedProcess:
    ours, theirs = socket.socketpair() if is_kept else (None, None)
    control = NO_CONTROL if theirs is None else str(theirs.fileno())
    program = ["-P", "-m", "flopwatch.worker.spawned_worker", control]
    popen = subprocess.Popen(
        [sys.executable, *program, *map(str, descriptors)],
        env=environment,
        pass_fds=[*descriptors, *([] if theirs is None else [theirs.fileno()])],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    if theirs is not None:
        theirs.close()
    pid_descriptor = os.pidfd_open(popen.pid) if hasattr(os, "pidfd_open") else None
    return SpawnedProcess(popen=popen, pid=popen.pid, pid_descriptor=pid_descriptor, control=ours)


def poll_readable(descriptors: Sequence[int], patience_s: float) -> set[int]:
    """Those that have something to read, or have ended, once any has."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(patience_s * 1000)}
