"""A worker that was spawned: a fresh interpreter, which may serve several requests in turn.

Importing torch and starting an accelerator takes seconds, and a process that has done so must not
fork. So the process waits for another request once it has served one, unless anything went wrong or
is not as it was before (`worker.process_state`). The first request's descriptors are its
arguments; those of the next ones come over a control socket, and it answers with one byte before it
serves such a request. Where it does not, since the request does not suit it or a file of the suite
has changed, it ends, and the runner starts a fresh one.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from flopwatch.worker import limits, process, process_state
from flopwatch.worker.channel import NO_CONTROL, TAKEN
from flopwatch.worker.failure import digest_sources, is_unchanged
from flopwatch.worker.messages import Call, Describe, MeasureGroup, Request, Served


class History:
    """What the process has served so far."""

    def __init__(self) -> None:
        self._measured: MeasureGroup | None = None
        self._request: Request | None = None
        self._suite_path: Path | None = None
        self._sources: dict[str, str] = {}

    def add(self, request: Request, sources: dict[str, str]) -> None:
        """`sources` are those that it reported, as they were when they were loaded."""
        self._request = request
        self._measured = request if isinstance(request, MeasureGroup) else self._measured
        suite_path = find_suite_path(request) or self._suite_path
        if suite_path is not None:
            # The oldest count: files that have changed since are not what this process has loaded.
            self._suite_path = suite_path
            self._sources = {**digest_sources(suite_path), **sources, **self._sources}

    def can_go_on_with(self, request: Request) -> bool:
        """Whether this process is to the request as a fresh one."""
        before = self._request
        if before is None or request.fresh or request.paths or before.paths:
            return False
        return (
            _list_constants(request) == _list_constants(before)
            and self._has_same_suite(find_suite_path(request))
            and self._is_like_measured(request)
        )

    def _has_same_suite(self, suite_path: Path | None) -> bool:
        if self._suite_path is None:
            return True
        return suite_path in (None, self._suite_path) and is_unchanged(
            self._sources, self._suite_path
        )

    def _is_like_measured(self, request: Request) -> bool:
        """As the same rank of as many, with as much of the device's memory."""
        before = self._measured
        if before is None or not isinstance(request, MeasureGroup):
            return True
        places = [
            None if one.place is None else replace(one.place, port=0) for one in (before, request)
        ]
        return places[0] == places[1] and before.is_probe == request.is_probe


def _list_constants(request: Request) -> tuple[object, ...]:
    """What cannot be changed while a process lives."""
    settings = request.settings
    return settings.device, settings.threads, settings.allocator


def find_suite_path(request: Request) -> Path | None:
    """Of the suite that a request is about."""
    if isinstance(request, Describe | MeasureGroup):
        return Path(request.suite_path)
    if isinstance(request, Call) and isinstance(path := request.arguments.get("suite_path"), str):
        return Path(path)
    return None


def serve(descriptors: list[int], control: socket.socket) -> None:
    """Requests, one after the other, as long as the process is good for them."""
    process.settle_in(descriptors[2])
    # What libraries do when they are loaded, such as to set variables, is no request's doing.
    import threadpoolctl  # noqa: F401
    import torch  # noqa: F401

    data_limits = resource.getrlimit(resource.RLIMIT_DATA)
    history = History()
    while descriptors:
        before = process_state.read_state()
        channel = process.run_worker(descriptors)
        if channel.has_failed:
            return
        channel.let_go()
        request = process.read_request(descriptors[0])
        if not process_state.restore(before, data_limits):
            return
        history.add(request, channel.sources)
        channel.send(Served())
        for descriptor in descriptors:
            os.close(descriptor)
        descriptors = _take_next(control, history)


def _take_next(control: socket.socket, history: History) -> list[int]:
    """The descriptors of the next request; none where there is none, or it is for another
    process."""
    _, descriptors, _, _ = socket.recv_fds(control, len(TAKEN), process.NUM_DESCRIPTORS)
    if not descriptors or not history.can_go_on_with(process.read_request(descriptors[0])):
        return []
    control.sendall(TAKEN)
    return descriptors


def main() -> NoReturn:
    """``python -m flopwatch.worker.spawned_worker CONTROL DESCRIPTOR ...``"""
    control, *descriptors = sys.argv[1:]
    exit_code = 1
    limits.die_with_parent()
    try:
        numbers = [int(descriptor) for descriptor in descriptors]
        if control == NO_CONTROL:
            process.run_worker(numbers)
        else:
            serve(numbers, socket.socket(fileno=int(control)))
        exit_code = 0
    except BaseException:
        traceback.print_exc()  # to the log, which is all that is left of it
    finally:
        # Exit handlers, those of NCCL for example, may hang, and nothing depends on them.
        os._exit(exit_code)


if __name__ == "__main__":
    main()
