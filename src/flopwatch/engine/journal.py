"""What a rank notes while it runs a step of a job: when it came to each collective, and left it.

A rank that comes early waits for the last one. Side by side, the journals of all ranks tell such
waiting from working, and both from moving data: `engine.ranks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flopwatch.engine.clock import Clock


@dataclass(frozen=True, slots=True)
class Visit:
    """Marks of the clock. A rank that does not stop at a collective, since it has other work to do
    meanwhile, has not left it where it arrived: `left` is None."""

    arrived: Any
    left: Any | None


class Journal:
    """Of one workload on one rank; the engine clears it before a run and reads it after."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.visits: list[Visit] = []

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Around a collective that the rank is stopped by until it is done."""
        arrived = self.clock.mark()
        yield
        self.visits.append(Visit(arrived, self.clock.mark()))

    def pass_by(self) -> None:
        """At a collective that goes on in the background."""
        self.visits.append(Visit(self.clock.mark(), None))

    def clear(self) -> None:
        self.visits = []
