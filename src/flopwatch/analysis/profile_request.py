"""What is asked of a profile, and what comes back: plain data between a command and its worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flopwatch.analysis.profile_breakdown import Entry, Operator
from flopwatch.analysis.statistics import median
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.training_job import Attention, TrainingJob
from flopwatch.records.file_safety import require_replaceable

PHASES = ("forward", "backward", "optimizer")
TRACE_GENERATOR = "flopwatch profile"
"""In every trace of ours: those of other programs are not replaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    job: TrainingJob
    steps: int = 5
    top: int = 10
    trace: str | None = None
    """Where to write the timeline of the last step."""
    nvtx: bool = False
    """Mark NVTX ranges for another profiler, instead of using torch's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Steps with and without the profiler took turns: samples at the same place are neighbours."""

    name: str
    plain_samples_ns: Sequence[float]
    profiled_samples_ns: Sequence[float]

    @property
    def plain_ns(self) -> float:
        return median(self.plain_samples_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    request: Request
    device: str
    threads: int
    torch: str
    attention: Attention
    """The kind in force: not every model has a choice."""
    parameters: int
    phases: Sequence[Phase]
    entries: Sequence[Entry]
    """They add up to `plain_ns` of all phases; none where another profiler was used."""
    operators: Sequence[Operator]

    @property
    def step_ns(self) -> float:
        return sum(phase.plain_ns for phase in self.phases)

    @property
    def plain_steps_ns(self) -> list[float]:
        return [
            sum(times) for times in zip(*(p.plain_samples_ns for p in self.phases), strict=True)
        ]

    @property
    def slowdown(self) -> float:
        """How many times as long a profiled step took as its neighbour."""
        profiled = zip(*(p.profiled_samples_ns for p in self.phases), strict=True)
        pairs = zip(profiled, self.plain_steps_ns, strict=True)
        return median([sum(times) / plain_ns for times, plain_ns in pairs])


def make_request(job: TrainingJob, **given: Any) -> Request:
    """With everything checked that can be, before the minutes that a profile takes."""
    request = Request(job=job, **given)
    if isinstance(job.model, str):
        find_shape(job.model)  # what can only be accounted for cannot be built
    if request.trace is None:
        return request
    if request.nvtx:
        raise UsageError("--nvtx leaves the timeline to another profiler; leave --trace out")
    path = Path(request.trace)
    mark = TRACE_GENERATOR.encode()
    require_replaceable(path, lambda content: mark in content, "a trace of flopwatch")
    return replace(request, trace=str(path.absolute()))
