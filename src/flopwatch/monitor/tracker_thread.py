"""A thread for each tracker: one that waits for a server holds up neither the results file nor the
other trackers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from flopwatch.errors import FlopwatchError
from flopwatch.monitor.base import RunFacts, StepFacts, Tracker
from flopwatch.records.monitored import End

MOST_WAITING = 3600
"""Messages, of about a second each, for a tracker that is behind; later ones are left out."""
CLOSE_LIMIT_S = 60.0
"""For all trackers together: a training that has ended should not wait for a server forever."""


class TrackerThread(threading.Thread):
    def __init__(self, tracker: Tracker, run: RunFacts, warn: Callable[[str], None]) -> None:
        self.label = type(tracker).__name__
        super().__init__(daemon=True, name=f"flopwatch {self.label}")
        self._tracker = tracker
        self._run_facts = run
        self._warn = warn
        self._messages: SimpleQueue[Sequence[StepFacts] | End] = SimpleQueue()
        self._has_failed = False
        self._is_late = False

    def tell(self, steps: Sequence[StepFacts]) -> None:
        if self._has_failed or self._is_late:
            return
        if self._messages.qsize() < MOST_WAITING:
            self._messages.put(steps)
        else:
            self._is_late = True
            self._warn(f"{self.label} takes too long, and gets no more steps")

    def finish(self, end: End) -> None:
        """Without waiting for it: `join_all` does."""
        self._messages.put(end)

    def run(self) -> None:
        try:
            self._tracker.start(self._run_facts)
            while not isinstance(message := self._messages.get(), str):
                self._tracker.steps(message)
            self._tracker.close(message)
        except Exception as error:
            self._has_failed = True
            kind = "" if isinstance(error, FlopwatchError) else f"{type(error).__name__}: "
            self._warn(f"{self.label} is left out from now on ({kind}{error})")


def join_all(threads: Sequence[TrackerThread], warn: Callable[[str], None]) -> None:
    """Returns when all are closed, or after a while."""
    deadline_s = time.monotonic() + CLOSE_LIMIT_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
        if thread.is_alive():
            warn(f"{thread.label} had not taken all steps after {CLOSE_LIMIT_S:g} s")
