"""Named parts of a model, for whoever listens.

A model marks its parts as it runs, ``with region("attention/scores"): ...``. That costs next to
nothing until somebody listens: the profiler (every region is then an event of its trace) or, on a
GPU, Nsight Systems (an NVTX range).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Listener = Callable[[str], AbstractContextManager[object]]

_SILENCE: AbstractContextManager[None] = nullcontext()
_listeners: list[Listener] = []
"""The last one is listened to."""


def region(name: str) -> AbstractContextManager[object]:
    """A part of a model, ``part`` or ``part/detail``."""
    return _listeners[-1](name) if _listeners else _SILENCE


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have `listener` enter a context of its own around every region, for as long as this lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()
