"""What `flopwatch.Monitor` saw of a training loop, as a section of its record.

A results file has one line for the beginning of a run, which is a record without samples, and then
about once a second a line with the steps since, of one rank: a `Continuation`. So a job that is
killed has lost its last second at most. Readers get one record a run: `join` puts it together.

Times are those of a monotonic clock that each rank starts at 0 with its monitor; `zero_unix_s` says
when that was. A wall clock that jumps changes nothing but that. Durations are measured on the
device, where it has a queue of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import msgspec

from flopwatch.records.quantities import Amount, Count, Number, PartTime, Time

Part = Literal["data", "forward", "loss", "backward", "communication", "optimizer"]
"""Of a step. data: waiting for the loader. loss: from the end of the forward pass until a gradient
reaches the model's output. communication: what is left to wait for when a rank has computed its own
gradients. What is in none of them is the rest: "other"."""
EventKind = Literal["pause", "gc", "allocator-retry", "throttled"]
FlopsSource = Literal["job", "config", "module", "number"]
FlopsUnit = Literal["token", "micro-batch"]
End = Literal["closed", "exception", "exit", "disabled"]
"""closed: by `close` or the end of its ``with``. exception: one has left the ``with``. exit: the
program ended without closing it. disabled: the monitor stopped itself, the training went on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitoredEvent:
    """Something that took time or may have cost some."""

    kind: EventKind
    name: str
    """Of a pause as the user calls it; of a garbage collection its generation; why a device was
    throttled."""
    begin_ns: PartTime
    duration_ns: PartTime
    """Of what is only looked for now and then (allocator-retry, throttled), the time between two
    looks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeterReading:
    """What a device's meters said at one moment."""

    at_ns: PartTime
    energy_j: Amount | None = None
    """Since some moment in the past: only differences mean something."""
    power_w: Amount | None = None
    temperature_c: Number | None = None
    memory_bytes: Count | None = None
    """Held by tensors on the device; on a CPU, by the process."""
    peak_memory_bytes: Count | None = None
    """The most so far."""
    phase_memory_bytes: dict[str, Count] = field(default_factory=dict)
    """Held by tensors when a part of the step before had ended; empty where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSteps:
    """What one rank did. Lists are parallel to `steps`, but for events and readings."""

    rank: Count
    zero_unix_s: Number
    """Unix time at the zero of its clock."""
    seen_ns: PartTime = 0.0
    """When it last wrote something: it was alive then."""
    steps: list[Count] = field(default_factory=list)
    """Their numbers, which rise; one is missing where its times are not known."""
    begin_ns: list[PartTime] = field(default_factory=list)
    """A step begins where the one before it ended."""
    time_ns: list[Time] = field(default_factory=list)
    """Without pauses in it."""
    parts_ns: dict[Part, list[PartTime | None]] = field(default_factory=dict)
    """None where a step did not have it, or it was not seen."""
    arrived_ns: list[PartTime | None] = field(default_factory=list)
    """When it had computed its own gradients of the step, and began to wait for other ranks."""
    micro_batches: list[Count] = field(default_factory=list)
    """Forward passes of the model that a backward pass may follow; 0 where no model is known."""
    tokens: list[Count | None] = field(default_factory=list)
    """Useful ones, of this rank's own batch; None: as many as the run's `tokens_per_step` says."""
    padded_tokens: list[Count | None] = field(default_factory=list)
    """The same with padding: what was computed. None: without padding, as far as is known."""
    events: list[MonitoredEvent] = field(default_factory=list)
    readings: list[MeterReading] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedFlops:
    """FLOPs of a token, or of a micro-batch of one rank where nobody knows its tokens."""

    model: Amount
    """Of the forward and backward pass: for MFU."""
    hardware: Amount | None
    """With what is recomputed: for HFU."""
    dtype: str
    """Of the matmuls, as peaks are listed by."""
    source: FlopsSource
    convention: str
    """A key of `jobs.conventions.CONVENTIONS`; "counted": all matmuls that a step computed, with
    attention in full; "given": by the user."""
    unit: FlopsUnit = "token"
    remark: str = ""
    """How they were found, as a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Monitored:
    """A run of a training loop."""

    rank: Count
    """That wrote the first line."""
    world_size: Count
    data_parallel: Count
    """Ranks with batches of their own: the others share one of these (tensor, context, pipeline
    parallelism). A step's tokens are the mean of all ranks' times this."""
    started_unix_s: Number
    clock: str
    """Of durations."""
    tokens_per_step: Amount | None = None
    """Of all ranks, where steps do not say how many they have."""
    first_steps: Count = 0
    """Steps that are set apart: compilation and allocation are in them."""
    flops: CountedFlops | None = None
    flops_missing: str | None = None
    """Why FLOPs are not known, and what to do."""
    end: End | None = None
    """Of the lowest rank; None: it was killed, or is still running."""
    ranks: list[RankSteps] = field(default_factory=list)
    """In order of their numbers; a rank without a monitor is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """A line of a results file: what one rank of a run did since its line before."""

    case_id: str
    group_id: str
    run_id: str
    continued: RankSteps
    flops: CountedFlops | None = None
    """As soon as they are known."""
    flops_missing: str | None = None
    job: dict[str, Any] | None = None
    """Where a config made one."""
    notes: list[str] = field(default_factory=list)
    end: End | None = None
    schema: int = 1


PARALLEL = (
    *("steps", "begin_ns", "time_ns", "arrived_ns"),
    *("micro_batches", "tokens", "padded_tokens"),
)
"""Lists of `RankSteps` that are parallel, as all of `parts_ns` are."""


def encode_continuation(line: Continuation) -> bytes:
    """One line, without its newline; what is empty is left out, since there is one a second."""
    content: dict[str, Any] = msgspec.to_builtins(line)
    content["continued"] = _drop_empty(content["continued"])
    return msgspec.json.encode(_drop_empty(content))


def _drop_empty(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value not in (None, [], {})}


def find_uneven(steps: RankSteps) -> Iterator[str]:
    """What the types of single fields cannot say is wrong."""
    lengths = {name: len(getattr(steps, name)) for name in PARALLEL}
    lengths |= {part: len(times_ns) for part, times_ns in steps.parts_ns.items()}
    for name, length in lengths.items():
        if length != len(steps.steps):
            yield f"rank {steps.rank} has {len(steps.steps)} steps but {length} of {name}"
    if any(after <= before for before, after in pairwise(steps.steps)):
        yield f"the numbers of rank {steps.rank}'s steps do not rise"
