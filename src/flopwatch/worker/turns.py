"""Two workers that take turns: a round of one, a round of the other, in an order drawn anew.

The two revisions of a project cannot be loaded into one process, as variants are. So each has a
worker, and of both workers only one runs at a time. What slows the machine for longer than a round
hits both alike, and cancels in the ratio of the two rounds of the same number.

The workers talk to each other directly, over a socket that the runner has given to both: at the end
of a turn a worker sends one byte, which also says whether it has enough rounds. Both draw the order
from the same seed. A worker whose peer has ended, or does not answer, goes on alone.
"""

from __future__ import annotations

import random
import socket
import time
from typing import Literal

Side = Literal[0, 1]
"""Which of the two a worker is: 0 the base, 1 the head."""

SETTLING_S = 0.001
"""Before a turn. The peer's threads spin after their last work, in case there is more, and would
take a core from this worker's first samples. Those of libgomp do for as long as GOMP_SPINCOUNT
says, which the runner sets."""
PATIENCE = 0.8
"""Share of the time after which the runner takes a silent worker for hung: a worker that waits for
a hung one must not be taken for it."""
GO, ENOUGH = b"g", b"e"


class Alone:
    """The turns of a worker that has no peer."""

    is_shared = False

    def begin(self) -> None:
        pass

    def end(self, *, is_enough: bool) -> bool:
        return is_enough

    def leave(self) -> None:
        pass


class Turns:
    """Those of one of two workers. `begin` and `end` enclose a round."""

    def __init__(
        self, link: socket.socket, *, side: Side, seed: int, silence_limit_s: float
    ) -> None:
        link.settimeout(PATIENCE * silence_limit_s)
        self._link = link
        self._side = side
        self._random = random.Random(seed)  # the same draws as the peer's
        self._is_first = False
        self._has_peer = True
        self._peer_has_enough = False

    @property
    def is_shared(self) -> bool:
        return True

    def begin(self) -> None:
        """Wait for this worker's turn in the next round."""
        self._is_first = self._random.randrange(2) == self._side
        if not self._is_first:
            self._wait_for_peer()
        if self._has_peer:
            time.sleep(SETTLING_S)

    def end(self, *, is_enough: bool) -> bool:
        """This worker's turn is over; whether both have enough, once the peer has had its turn."""
        if self._has_peer:
            try:
                self._link.send(ENOUGH if is_enough else GO)
            except OSError:
                self._has_peer = False
        if self._is_first:
            self._wait_for_peer()
        return is_enough and (self._peer_has_enough or not self._has_peer)

    def leave(self) -> None:
        """The peer goes on alone."""
        self._has_peer = False
        self._link.close()

    def _wait_for_peer(self) -> None:
        if not self._has_peer:
            return
        try:
            answer = self._link.recv(1)
        except OSError:  # a time-out is one, too
            answer = b""
        self._has_peer = answer in (GO, ENOUGH)
        self._peer_has_enough = answer == ENOUGH
