"""What a monitor tells trackers: facts of the run once, facts of its steps about once a second.

A tracker is any object with the three methods of `Tracker`. It is called on rank 0 only, from a
thread of the monitor's own and never inside a step, so that it may take its time. Where it raises,
it is left out from then on, with one warning, and the training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from flopwatch.records.monitored import CountedFlops, End, MonitoredEvent, Part


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Of a run, as far as they are known when its first step has ended."""

    run_id: str
    name: str
    out: Path | None
    """The results file; None where nothing is stored."""
    started_unix_s: float
    rank: int
    world_size: int
    data_parallel: int
    device: str
    """Its kind, by torch's name."""
    device_name: str | None
    """As its driver reports it."""
    devices: int
    """That the ranks have together; a CPU that they share counts once."""
    parameters: int | None
    trainable_parameters: int | None
    tokens_per_step: float | None
    """Of all ranks; None where steps say it themselves."""
    flops: CountedFlops | None
    peak_flops_per_s: float | None
    """Of one rank, in the dtype of `flops`: ranks on a CPU share its peak."""
    peak_source: str | None
    missing: str | None
    """Why there is no MFU, and what to do; None where there is one."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """What identifies the run: names and plain values."""
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """Of one step of rank 0. Rates are those of all ranks, taken to have as many tokens each."""

    number: int
    """From 0; a restart of the same training that was told its first step goes on from there."""
    ended_unix_s: float
    time_s: float
    """From the end of the step before to its own, without pauses."""
    parts_s: Mapping[Part, float | None]
    """Of `Part` those that this monitor can see at all; None where this step did not have it."""
    other_s: float
    """What is in none of them."""
    paused_s: float
    """In pauses since the step before; not part of `time_s`."""
    is_first: bool
    """Whether it is one of those that are set apart: compilation, allocation."""
    tokens: float | None
    """Useful ones, of all ranks."""
    padded_tokens: float | None
    """With padding."""
    tokens_per_s: float | None
    mfu: float | None
    """By useful tokens; None where FLOPs or the peak are not known: `RunFacts.missing`."""
    hfu: float | None
    """With padding and what is recomputed."""
    memory_bytes: int | None
    """Held by tensors, at the last look; on a CPU by the process."""
    peak_memory_bytes: int | None
    energy_j: float | None
    """Of rank 0's device, shared evenly by the steps between two readings of its meter."""
    events: Sequence[MonitoredEvent] = ()
    """That ended in this step, or between it and the one before."""


@runtime_checkable
class Tracker(Protocol):
    def start(self, run: RunFacts) -> None:
        """Before the first steps; called once, when the first step has ended."""

    def steps(self, steps: Sequence[StepFacts]) -> None:
        """All steps that ended since the call before, at least one, in order."""

    def close(self, end: End) -> None:
        """Called once, after the last steps; not where the process is killed."""
