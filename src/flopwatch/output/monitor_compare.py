"""Two monitored runs side by side: which part of a step moved, and what else did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flopwatch.analysis.monitored_changes import PartChange, RunChange
from flopwatch.analysis.monitored_run import RunSummary
from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import (
    format_bytes,
    format_count,
    format_share,
    format_signed_time,
    format_time,
)

NOT_INTERLEAVED = (
    "the steps of two runs are not interleaved: intervals cover how steps vary within each run, "
    "not what else differed between the two (the machine, other jobs, the data); a second run of "
    "each shows how much that is"
)


def describe_change(change: RunChange) -> list[str]:
    """What moved, in a sentence."""
    moved = sorted(
        (part for part in change.parts if part.has_moved), key=lambda part: -abs(part.change_ns)
    )
    step = change.step
    whole = (
        f"The mean step went from {format_time(step.old_ns)} to {format_time(step.new_ns)} "
        f"({_write_change(step)})"
    )
    if not step.has_moved and not moved:
        return [f"{whole}, and no part of it moved for certain."]
    if not moved:
        return [f"{whole}; its parts are not known, or none moved for certain."]
    named = [f"{part.name} {format_signed_time(part.change_ns, '+')}" for part in moved[:3]]
    return [f"{whole}; what moved: {', '.join(named)}."]


def make_change_sheets(changes: Sequence[RunChange]) -> list[Sheet]:
    return [sheet for change in changes for sheet in _make_sheets(change)]


def _make_sheets(change: RunChange) -> Iterator[Sheet]:
    columns: list[Column[PartChange]] = [
        Column("part", lambda part: part.name, "word"),
        number("old", "ns", lambda part: part.old_ns),
        number("new", "ns", lambda part: part.new_ns),
        Column("change", _write_change, value=lambda part: part.change_ns),
        Column("moved", lambda part: "yes" if part.has_moved else "", "word"),
    ]
    yield Sheet(
        title="the mean step, old and new",
        columns=columns,
        items=[[*change.parts, change.step]],
        labels=1,
        conditions="99 % intervals, by blocks of steps",
        remarks=[NOT_INTERLEAVED],
    )
    facts = [fact for fact in FACTS if fact.find(change.old) or fact.find(change.new)]
    values: list[Column[Fact]] = [
        Column("fact", lambda fact: fact.name, "word"),
        Column("old", lambda fact: fact.find(change.old)),
        Column("new", lambda fact: fact.find(change.new)),
    ]
    yield Sheet(title="the runs, old and new", columns=values, items=[facts], labels=1)


def _write_change(part: PartChange) -> str:
    change = format_signed_time(part.change_ns, "+")
    if part.low_ns is None or part.high_ns is None:
        return change
    ends = [format_signed_time(end, "+") for end in (part.low_ns, part.high_ns)]
    return f"{change} [{ends[0]}, {ends[1]}]"


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    find: Callable[[RunSummary], str]
    """Empty where it is not known."""


FACTS = (
    Fact("MFU", lambda run: format_share(run.utilisation.mfu if run.utilisation else None)),
    Fact("HFU", lambda run: format_share(run.utilisation.hfu if run.utilisation else None)),
    Fact("tokens/s", lambda run: format_count(run.tokens.per_s) if run.tokens else ""),
    Fact("median step", lambda run: format_time(run.step_ns.value)),
    Fact("steady steps", lambda run: f"{run.steady_steps:,}"),
    Fact("slow steps", lambda run: f"{len(run.slow):,}"),
    Fact(
        "lost to slow steps",
        lambda run: format_share(run.slow_lost_ns / (run.mean_step_ns * run.steady_steps)),
    ),
    Fact("waits for data, of the wall clock", lambda run: format_share(run.data_share)),
    Fact(
        "waits for the last rank, of the steps",
        lambda run: format_share(run.stragglers.lost_share if run.stragglers else None),
    ),
    Fact("goodput", lambda run: format_share(run.goodput.share if run.goodput else None)),
    Fact("padding", lambda run: format_share(run.tokens.padding_share if run.tokens else None)),
    Fact("starts", lambda run: str(len(run.starts))),
    Fact(
        "peak memory",
        lambda run: format_bytes(run.memory.peak_bytes) if run.memory.peak_bytes else "",
    ),
)
