"""Ctrl-C: the first press is a wish, the second an order.

The wish is kept in mind until the current group is done. The order is only raised where the runner
waits for a worker: anywhere else (while records are stored, for example) it could lose what was
measured, and the run is about to stop anyway.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Where it `is_urgent`, the first press is an order already."""

    def __init__(self, *, is_urgent: bool = False) -> None:
        self.count = 0
        self._enough = 1 if is_urgent else 2
        self._waiting = False

    @contextmanager
    def watched(self, say: Callable[[str], None]) -> Iterator[None]:
        """Count Ctrl-C instead of raising it."""

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            self.count += 1
            if self.count < self._enough:
                say("finishing the current group; press Ctrl-C again to stop at once")
            elif self._waiting:
                raise KeyboardInterrupt

        previous = signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Here the second Ctrl-C is raised, even if it came before."""
        self._waiting = True
        try:
            if self.count >= self._enough:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False
