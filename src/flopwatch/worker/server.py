"""The warm server: a process that has imported torch and forks workers on request.

Importing torch takes seconds; forking a process that has done so takes milliseconds. The server
must stay fit for forking, so it starts no thread and touches no CUDA, and runs one worker at a
time, which is also what a measurement wants. Each packet that it receives is a request for one
worker, with the worker's descriptors attached; it answers with the worker's pid, and then, once
that has ended, with its exit code.

Processes that a worker leaves behind become children of the server, which kills them, in whatever
session they are. Should the server itself be killed, they become children of its watcher, a process
that only waits for the end of the server or of the runner, and then ends all that is left.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

import psutil

from flopwatch.worker import limits, process

PACKET_BYTES = 1 << 10
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""What systems count the largest resident size in."""
ORPHANS_S = 5.0
"""Killing what a worker has left behind takes milliseconds, unless a process waits for a device."""
WATCHED = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""Signals that the watcher waits for; the first is the runner's end."""


def watch(server: int) -> NoReturn:
    """Wait for the end of the server or of the runner, then end what is left of the server, with
    all that it and its workers have started, and end as it has."""
    limits.die_with_parent(signal.SIGTERM)
    while signal.sigwait(WATCHED) == signal.SIGCHLD and not _has_ended(server):
        pass  # it was stopped, or goes on
    os.kill(server, signal.SIGKILL)  # it was not reaped: the number is still its own
    _, status = os.waitpid(server, 0)
    _kill_orphans()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _has_ended(server: int) -> bool:
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, server, options) is not None


def serve(connection: socket.socket) -> None:
    while True:
        packet, descriptors, _, _ = socket.recv_fds(
            connection, PACKET_BYTES, process.NUM_DESCRIPTORS
        )
        if not packet:
            return
        try:
            pid = os.fork()
        except OSError as error:
            _send(connection, error=str(error))
            continue
        if pid == 0:
            connection.close()
            _become_worker(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _send(connection, pid=pid)
        _, status, usage = os.wait4(pid, 0)
        _kill_orphans()
        code = os.waitstatus_to_exitcode(status)
        _send(connection, exit_code=code, peak_bytes=usage.ru_maxrss * MAXRSS_BYTES)


def _become_worker(descriptors: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exit_code = 1
    try:
        process.run_worker(descriptors)
        exit_code = 0
    except BaseException:
        traceback.print_exc()  # to the log, which is all that is left of it
    finally:
        # No unwinding into the server's stack, no exit handlers of a process we are not.
        os._exit(exit_code)


def _kill_orphans() -> None:
    """Kill and reap all children, and theirs, which become children in turn."""
    deadline_s = time.monotonic() + ORPHANS_S
    with suppress(ChildProcessError):  # there are none left
        while time.monotonic() < deadline_s:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
            if reaped:
                continue
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    child.kill()
            time.sleep(0.001)


def _send(connection: socket.socket, **content: object) -> None:
    with suppress(ConnectionError):  # the runner has ended, as the next request will say
        connection.send(json.dumps(content).encode())


def main() -> None:
    """``python -m flopwatch.worker.server DESCRIPTOR [MODULE ...]``: import the modules, serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides what Ctrl-C means
    limits.adopt_orphans()
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    server = os.fork()  # before anything is imported, so that the watcher stays small
    if server:
        connection.close()
        watch(server)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    limits.die_with_parent()
    limits.adopt_orphans()  # which is not inherited
    try:
        for module in sys.argv[2:]:
            __import__(module)
    except Exception as error:
        _send(connection, error=f"{type(error).__name__}: {error}"[:PACKET_BYTES])
        return
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages
    _send(connection, pid=os.getpid(), threads=limits.count_threads())
    serve(connection)


if __name__ == "__main__":
    main()
