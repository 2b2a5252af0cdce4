"""Servers that fork workers, kept from one test to the next: each imports torch once.

What a test does in a worker ends with that worker, and a server whose worker has not ended, or that
is lost, is not kept. They differ by their variables, not by the folder that they were started in.
"""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.runner.worker_processes import ForkedProcess, Server

MOST_IDLE = 3
VOLATILE = ("PYTEST_CURRENT_TEST", "COLUMNS", "LINES")
"""Variables that differ from test to test, and that no worker reads."""


class ServerPool:
    def __init__(self) -> None:
        self._idle: list[WarmServer] = []

    def take(self, environment: dict[str, str], preload: Sequence[str]) -> WarmServer:
        kept = {name: value for name, value in environment.items() if name not in VOLATILE}
        about = (tuple(preload), frozenset(kept.items()))
        for server in self._idle:
            if server.about == about:
                self._idle.remove(server)
                return server
        return WarmServer(kept, preload, about, self)

    def put_back(self, server: WarmServer) -> None:
        self._idle.append(server)
        while len(self._idle) > MOST_IDLE:
            self._idle.pop(0).end()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class WarmServer(Server):
    def __init__(
        self, environment: dict[str, str], preload: Sequence[str], about: object, pool: ServerPool
    ) -> None:
        self.about = about
        self._pool = pool
        self._is_busy = False
        super().__init__(environment, preload)

    def fork(self, descriptors: list[int], patience_s: float) -> ForkedProcess:
        forked = super().fork(descriptors, patience_s)
        self._is_busy = True
        return forked

    def receive(self, patience_s: float) -> dict[str, object]:
        content = super().receive(patience_s)
        self._is_busy = self._is_busy and "exit_code" not in content
        return content

    def close(self) -> None:
        if self.is_lost or self._is_busy:
            self.end()
        else:
            self._pool.put_back(self)

    def end(self) -> None:
        super().close()
