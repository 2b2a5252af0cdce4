"""Marks in time that the loop leaves behind, and what they say about a step.

Inside a step nothing is computed: a mark is a code and a moment, appended to a list. A thread of
the monitor's own makes times of them later, once the device has passed them all.

    data       forward       loss        backward     communication        optimizer
    D━━━━━D  F━━━━━━━━━F───────────────G━━━━━━━━━━━━B━━━━━━━━━━━━━━━W    O━━━━━━━━━━━O  ... end

A gradient accumulation has several of F to W. What is between the parts is the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from flopwatch.records.monitored import MonitoredEvent, Part

Tokens = Any
"""A whole number, or a tensor with one, or None."""


class Code(IntEnum):
    STEP_END = 0
    DATA_BEGIN = 1
    DATA_END = 2
    FORWARD_BEGIN = 3
    FORWARD_END = 4
    GRADIENT = 5
    """It reaches the model's output: its backward pass begins."""
    BACKWARD_END = 6
    """All gradients of this rank are computed."""
    WAIT_END = 7
    """The backward pass returns: what it waited for, such as other ranks, is done."""
    OPTIMIZER_BEGIN = 8
    OPTIMIZER_END = 9
    PAUSE_BEGIN = 10
    PAUSE_END = 11


class Mark(NamedTuple):
    code: Code
    at_ns: int
    """On the clock of the host."""
    event: Any
    """In the queue of the device; None where it has none."""
    name: str = ""
    """Of a pause."""


Elapsed = Callable[[Mark, Mark], float]


def host_elapsed_ns(start: Mark, end: Mark) -> float:
    return float(end.at_ns - start.at_ns)


SPANS: dict[Code, tuple[Code, Part]] = {
    Code.DATA_END: (Code.DATA_BEGIN, "data"),
    Code.FORWARD_END: (Code.FORWARD_BEGIN, "forward"),
    Code.GRADIENT: (Code.FORWARD_END, "loss"),
    Code.BACKWARD_END: (Code.GRADIENT, "backward"),
    Code.WAIT_END: (Code.BACKWARD_END, "communication"),
    Code.OPTIMIZER_END: (Code.OPTIMIZER_BEGIN, "optimizer"),
}
"""By the mark that ends a part: the one that begins it, and its name."""
PARTS: tuple[Part, ...] = tuple(part for _, part in SPANS.values())
OF_CLOSURES = {Code.FORWARD_END, Code.GRADIENT, Code.BACKWARD_END, Code.WAIT_END}
"""Inside of an optimizer's step where it calls a closure, as Lightning has it: what the optimizer
does itself comes after them."""
OPENING = {begin for begin, _ in SPANS.values()}


@dataclass(slots=True)
class StepMarks:
    """A step that is under way, or waits to be looked at."""

    number: int
    begin: Mark
    """The end of the step before it."""
    marks: list[Mark] = field(default_factory=list)
    tokens: Tokens = None
    padded_tokens: Tokens = None
    micro_batches: int = 0

    @property
    def end(self) -> Mark:
        return self.marks[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    number: int
    begin_ns: int
    """On the clock of the host, as is its end."""
    end_ns: int
    time_ns: float
    """Without pauses."""
    paused_ns: float
    parts_ns: dict[Part, float]
    """Those that it had."""
    arrived_ns: int | None
    pauses: list[MonitoredEvent]
    tokens: int | None
    padded_tokens: int | None
    micro_batches: int


def measure(step: StepMarks, elapsed_ns: Elapsed, *, waits_for_ranks: bool) -> StepTimes:
    """The times of a step whose last mark has passed.

    `waits_for_ranks`: whether nobody but the loop itself sums up gradients over ranks, so that what
    lies between the last backward pass and the optimizer counts as communication.
    """
    parts_ns: dict[Part, float] = {}
    pauses: list[tuple[MonitoredEvent, float]] = []
    for begin, end, part in _list_spans(step.marks, waits_for_ranks):
        if part is None:
            pauses.append((_describe_pause(begin, end), elapsed_ns(begin, end)))
        else:
            parts_ns[part] = parts_ns.get(part, 0.0) + max(0.0, elapsed_ns(begin, end))
    paused_ns = sum(ns for _, ns in pauses)
    arrived = [mark.at_ns for mark in step.marks if mark.code is Code.BACKWARD_END]
    return StepTimes(
        number=step.number,
        begin_ns=step.begin.at_ns,
        end_ns=step.end.at_ns,
        time_ns=max(1.0, elapsed_ns(step.begin, step.end) - paused_ns),
        paused_ns=paused_ns,
        parts_ns=parts_ns,
        arrived_ns=arrived[-1] if arrived else None,
        pauses=[event for event, _ in pauses],
        tokens=_as_count(step.tokens),
        padded_tokens=_as_count(step.padded_tokens),
        micro_batches=step.micro_batches,
    )


def _as_count(tokens: Tokens) -> int | None:
    """Of what is no number of tokens, none: the step has its times all the same."""
    try:
        number = int(tokens)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if number >= 0 else None


def list_pauses(marks: Sequence[Mark]) -> list[MonitoredEvent]:
    """Those after the last step, such as that of the last checkpoint."""
    spans = _list_spans(marks, False)
    return [_describe_pause(begin, end) for begin, end, part in spans if part is None]


def _describe_pause(begin: Mark, end: Mark) -> MonitoredEvent:
    return MonitoredEvent(
        kind="pause",
        name=begin.name,
        begin_ns=float(begin.at_ns),
        duration_ns=float(end.at_ns - begin.at_ns),
    )


def _list_spans(
    marks: Sequence[Mark], waits_for_ranks: bool
) -> Iterator[tuple[Mark, Mark, Part | None]]:
    """Where parts begin and end, and pauses, which have no part. What began and did not end, as
    where an exception was raised, is left out."""
    opened: dict[Code, Mark] = {}
    ready: Mark | None = None
    """Since when there is nothing left to do for the optimizer but to wait."""
    for mark in marks:
        code = mark.code
        if Code.PAUSE_BEGIN in opened:
            if code is Code.PAUSE_END:
                yield opened.pop(Code.PAUSE_BEGIN), mark, None
                opened = dict.fromkeys(opened, mark)
            continue  # what an evaluation computes is no part of a step
        if code in SPANS:
            begin, part = SPANS[code]
            if begin in opened and not (waits_for_ranks and part == "communication"):
                yield opened.pop(begin), mark, part
        if code is Code.BACKWARD_END:
            ready = mark
        elif code is Code.OPTIMIZER_BEGIN and waits_for_ranks and ready is not None:
            yield ready, mark, "communication"
            ready = None
        if code in OPENING or code is Code.PAUSE_BEGIN:
            opened[code] = mark
        if code in OF_CLOSURES and Code.OPTIMIZER_BEGIN in opened:
            opened[Code.OPTIMIZER_BEGIN] = mark
