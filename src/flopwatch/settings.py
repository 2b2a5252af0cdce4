"""How to measure: everything about a run that is not what is measured.

One frozen object, made from the command line, sent to the worker as JSON and stored in every
record, so that a record says how it was taken and two records can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flopwatch.devices.kinds import HOST

Allocator = Literal["default", "retain"]
Cache = Literal["hot", "cold"]
Device = str
"""A kind of device, by torch's name: see `devices.kinds`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    device: Device = HOST
    device_index: int | None = None
    """Which one of the node's, where it is not the choice of flopwatch."""
    threads: int = 1
    cache: Cache = "hot"
    """hot: a sample finds the caches as the same variant's previous call left them.
    cold: the last-level cache is overwritten before every sample."""
    allocator: Allocator = "retain"
    target_interval: float | None = None
    """Sampling stops when intervals reach at most this far to either side, relatively. None: as
    soon as every comparison with the baseline is settled."""
    budget_s: float = 10.0
    """Time that one case may take for warm-up and sampling."""
    min_rounds: int = 8
    """Measured all the same where the budget is too short for them: with fewer there is no
    interval. 0 where the user has set the budget."""
    memory_limit_bytes: int | None = None
    silence_limit_s: float = 300.0
    """A worker that reports nothing for this long is taken for hung and ended."""
    seed: int = 0


SETTLED_INTERVAL = 0.05
"""A ratio is also known to this much when its comparison is settled: a wider one would be no answer
to the question how much faster."""
TARGET_INTERVAL = 0.02
"""Of a time that is compared with nothing, where no other is asked for."""

LARGEST_SEED = 2**63 - 1
"""Of what torch, and readers of records, have a type for."""

PROBE_SHARE = 0.95
"""Of the memory, for what is only tried: what fits then must fit again, when memory is fragmented
otherwise."""

QUICK = Settings(budget_s=2.0)
"""For a first impression."""

COMPARED_SETTINGS = ("device", "threads", "cache", "allocator")
"""The settings that change what a number means; the rest only changes how well it is known."""
