"""The warm server: a process that has imported torch and forks workers on request.

Importing torch takes seconds; forking a process that has done so takes milliseconds. The server
must stay fit for forking, so it starts no thread and touches no CUDA, and runs one worker at a
time, which is also what a measurement wants. Each packet that it receives is one request, with
the worker's three descriptors attached; it answers with the worker's pid, and then, once that has
ended, with its exit code.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import traceback

from flopwatch.worker import limits, process
from flopwatch.worker.messages import decode_request

PACKET_BYTES = 1 << 20
"""Largest request."""
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""What systems count the largest resident size in."""


def serve(connection: socket.socket) -> None:
    while True:
        packet, descriptors, _, _ = socket.recv_fds(connection, PACKET_BYTES, 3)
        if not packet:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become_worker(packet, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _send(connection, pid=pid)
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        _send(connection, exit_code=code, peak_bytes=usage.ru_maxrss * MAXRSS_BYTES)


def _become_worker(packet: bytes, descriptors: list[int]) -> None:
    exit_code = 1
    try:
        process.run_worker(decode_request(packet), descriptors)
        exit_code = 0
    except BaseException:
        traceback.print_exc()  # to the log, which is all that is left of it
    finally:
        # No unwinding into the server's stack, no exit handlers of a process we are not.
        os._exit(exit_code)


def _send(connection: socket.socket, **content: object) -> None:
    connection.send(json.dumps(content).encode())


def main() -> None:
    """``python -m flopwatch.worker.server DESCRIPTOR [MODULE ...]``: import the modules, serve."""
    limits.die_with_parent()
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        for module in sys.argv[2:]:
            __import__(module)
    except Exception as error:
        _send(connection, error=f"{type(error).__name__}: {error}")
        return
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages
    _send(connection, threads=limits.count_threads())
    serve(connection)


if __name__ == "__main__":
    main()
