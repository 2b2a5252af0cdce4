"""Garbage collection outside of samples.

Python's cyclic collector runs whenever enough objects were made, which is in the middle of some
sample. While sampling it is switched off, and called between rounds instead, so that workloads
that make reference cycles do not fill the memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Self

SHARE = 0.02
"""Collecting between rounds may take this share of the time."""


class Collector:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._was_enabled = False
        self._due_s = 0.0

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        gc.disable()
        self._collect()
        return self

    def __exit__(self, *error: object) -> None:
        if self._was_enabled:
            gc.enable()

    def collect_if_due(self) -> None:
        if self._now_s() >= self._due_s:
            self._collect()

    def _collect(self) -> None:
        start_s = self._now_s()
        gc.collect()
        end_s = self._now_s()
        self._due_s = end_s + max(1.0, (end_s - start_s) / SHARE)
