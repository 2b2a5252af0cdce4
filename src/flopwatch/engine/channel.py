"""What a worker and the runner share: a pipe of JSON lines, and a board of two bytes.

The board is shared memory that says which variant is in work and at which stage. A process that
dies by a signal can say nothing any more; the board still tells whom it was measuring.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import msgspec

STAGES = (
    "start",
    "joining",
    "build",
    "check",
    "reference",
    "sampling",
    "memory",
    "study",
    "finish",
)
BOARD_BYTES = 2
NOBODY = 255


class Posted(NamedTuple):
    variant_index: int | None
    stage: str


class Board:
    """Byte 0: index of the variant in work (or NOBODY). Byte 1: index of the stage."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, BOARD_BYTES)

    def write(self, variant_index: int, stage: str) -> None:
        self._memory[1] = STAGES.index(stage)
        self._memory[0] = variant_index

    def point_at(self, variant_index: int) -> None:
        """Only the variant: cheap enough to be done before every sample."""
        self._memory[0] = variant_index

    def read(self) -> Posted:
        index = self._memory[0]
        return Posted(None if index == NOBODY else index, STAGES[self._memory[1]])


def make_board() -> tuple[IO[bytes], Board]:
    """A file to hand to a worker, and the runner's view of the same memory."""
    # In memory where the system has that: a full disk should not keep anyone from measuring.
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("flopwatch-board"), "r+b")
    else:
        file = tempfile.TemporaryFile()
    file.write(bytes([NOBODY, 0]))
    file.flush()
    return file, Board(file.fileno())


class Channel:
    """The worker's end."""

    def __init__(self, events_descriptor: int, board: Board) -> None:
        self._descriptor = events_descriptor
        self._busy = 0
        self._ending = False
        self._say_last_words: Callable[[], None] = lambda: None
        self.board = board

    def send(self, event: str, **content: Any) -> None:
        data = memoryview(msgspec.json.encode({"event": event, **content}) + b"\n")
        with self.busy():
            while data:
                data = data[os.write(self._descriptor, data) :]

    def on_terminate(self, say_last_words: Callable[[], None]) -> None:
        """On SIGTERM, call this and end the process."""
        self._say_last_words = say_last_words
        signal.signal(signal.SIGTERM, self._on_terminate)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Meanwhile SIGTERM waits: a message cut in two would be none."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
        if self._ending and not self._busy:
            self._end()

    def _on_terminate(self, number: int, frame: object) -> None:
        self._ending = True
        if not self._busy:
            self._end()

    def _end(self) -> None:
        self._busy += 1  # once is enough
        try:
            self._say_last_words()
        finally:
            os._exit(0)
