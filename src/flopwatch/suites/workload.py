"""A workload: one built case, as a suite's build function returns it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, Protocol, get_args

from flopwatch.errors import SuiteError
from flopwatch.suites.case import require_storable
from flopwatch.worker.rank_times import Journal

Phase = Callable[..., Any]
Compared = Literal["first", "all"]


class Stopwatch(Protocol):
    """Times regions inside a workload. A region is named ``phase/region``, may be entered many
    times in a run, and its times add up."""

    def start(self, region: str) -> None: ...

    def stop(self, region: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One built case, ready to be run again and again."""

    phases: Mapping[str, Phase]
    """In order. The first is called with nothing, each other one with what the one before it
    returned: ``{"forward": lambda: layer(x), "backward": lambda y: y.backward(g)}``."""
    gradients: Mapping[str, Any] = field(default_factory=dict)
    """Tensors whose ``.grad``, after all phases, must agree with the reference's, by name."""
    compare: Compared = "first"
    """Whose results must agree with the reference's: what the first phase returns (the backward
    pass shows in the gradients), or what each of all phases returns, for phases that have nothing
    to do with one another. The reference must say the same."""
    reset: Callable[[], object] | None = None
    """Called before every sample and not timed, for example to clear gradients."""
    ahead: Callable[[int], Callable[[], object]] | None = None
    """For a device that works through a queue: prepares so many runs at once, and returns what is
    called before each of them in place of `reset`, and must not wait for the device. A sample is
    then a window of runs that follow each other as in an ordinary loop, from the first to the last
    without a pause, and what begins a run is timed with its first phase."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What a fair comparison must have in common and this workload fixes itself, for example
    ``{"autocast": "off"}``: variants that differ here are marked as not comparable."""
    facts: Mapping[str, float] | Callable[[], Mapping[str, float]] = field(default_factory=dict)
    """Numbers about what was built, for example ``{"parameters": 125e6}``; or a function that gives
    them after the first run, for what is only known then, such as the time to compile."""
    instrument: Callable[[Stopwatch], AbstractContextManager[object]] | None = None
    """Puts instruments into the workload (hooks, say) for as long as its context lasts, which
    start and stop the stopwatch. Every plain sample is then followed by one with instruments, and
    what they cost is known."""
    curves: Callable[[], Iterable[Mapping[str, float]]] | None = None
    """Runs once, after the timing, for what times do not show, such as how well a model learns.
    Each mapping that it yields is a point of the record's curves."""
    values: Callable[[], Mapping[str, Any]] | None = None
    """Tensors by name that must agree with the reference's, besides: called once, after the first
    run, for what is not a whole gradient here, such as those that are sharded over ranks."""
    journal: Journal | None = None
    """Where a workload that runs on several ranks notes the collectives that it passes."""
    renewable: bool = True
    """Whether it may be built again while it is sampled, so that its place in memory does not
    decide its speed: no for what shares something with other variants, or has a state."""
    notes: Sequence[str] = ()
    """Remarks about how it was built that a reader of its times should know, as sentences; they
    stand in the record and below the table."""

    @classmethod
    def of(cls, built: object) -> Workload:
        """What a build function may return: a Workload, a dict of phases, or one callable."""
        if isinstance(built, Workload):
            workload = built
        elif isinstance(built, Mapping):
            workload = cls(phases=built)
        elif callable(built):
            workload = cls(phases={"call": built})
        else:
            raise SuiteError(
                f"the build function returned {type(built).__name__}; "
                "return a Workload, a dict of phases, or a callable"
            )
        workload._validate()
        return workload

    def _validate(self) -> None:
        if not self.phases:
            raise SuiteError("the build function returned no phase; name at least one")
        if self.compare not in get_args(Compared):
            raise SuiteError(
                f"the workload compares {self.compare!r}; write one of "
                f"{', '.join(map(repr, get_args(Compared)))}"
            )
        if isinstance(self.notes, str) or not all(isinstance(note, str) for note in self.notes):
            raise SuiteError(f"the notes are {self.notes!r}; make them a list of sentences")
        for name, text in self.conditions.items():
            if not isinstance(text, str):
                raise SuiteError(
                    f"the condition {name!r} is {text!r}; conditions are text, to be compared and "
                    "shown as they are"
                )
        if not callable(self.facts):
            self.list_facts()
        for name in (*self.phases, *self.gradients, *self.conditions, *self.conditions.values()):
            require_storable(name)

    def require_phases(self, counted: Iterable[str], role: str) -> None:
        """Refuse what a function of the suite has counted for phases that are not here; regions
        inside phases are fine. A misspelt one would count where nothing is timed."""
        for name in counted:
            if name.partition("/")[0] not in self.phases:
                raise SuiteError(
                    f"the {role} function names the phase {name!r}, which the workload does not "
                    f"have; its phases are {', '.join(self.phases)}"
                )

    def list_facts(self) -> dict[str, float]:
        """Checked; after the first run where they come from a function."""
        facts = self.facts() if callable(self.facts) else self.facts
        for name, number in facts.items():
            if not isinstance(number, Real) or not math.isfinite(number):
                raise SuiteError(f"the fact {name!r} is {number!r}; facts are finite numbers")
        return {name: float(number) for name, number in facts.items()}
