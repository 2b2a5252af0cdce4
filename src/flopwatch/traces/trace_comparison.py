"""Two traces of the same work: what moved, by kind of work and by operator.

Kernels have other names on other hardware; operators do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.traces.explained_trace import ExplainedTrace
from flopwatch.traces.operation_kinds import KINDS


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedWork:
    """Of an average step."""

    name: str
    kind: str
    old_ns: float | None
    """None: there was none."""
    new_ns: float | None

    @property
    def change_ns(self) -> float:
        return (self.new_ns or 0.0) - (self.old_ns or 0.0)

    @property
    def ratio(self) -> float | None:
        """How many times as long as before."""
        return self.new_ns / self.old_ns if self.old_ns and self.new_ns else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceComparison:
    old: ExplainedTrace
    new: ExplainedTrace
    rows: Sequence[MovedWork]
    """By kind; their changes add up to that of the step. What moved most comes first."""
    operators: Sequence[MovedWork]

    @property
    def change_ns(self) -> float:
        return self.new.step_ns - self.old.step_ns


def compare_traces(old: ExplainedTrace, new: ExplainedTrace) -> TraceComparison:
    before, after = old.mean_rows_ns, new.mean_rows_ns
    rows = [
        MovedWork(name=kind, kind=kind, old_ns=before.get(kind), new_ns=after.get(kind))
        for kind in KINDS
        if kind in before or kind in after
    ]
    return TraceComparison(
        old=old, new=new, rows=_sort(rows), operators=_sort(_list_operators(old, new))
    )


def _list_operators(old: ExplainedTrace, new: ExplainedTrace) -> list[MovedWork]:
    sides = [
        {(use.name, use.kind): use.time_ns / trace.count for use in trace.operators}
        for trace in (old, new)
    ]
    return [
        MovedWork(name=name, kind=kind, old_ns=sides[0].get((name, kind)),
                  new_ns=sides[1].get((name, kind)))
        for name, kind in {**sides[0], **sides[1]}
    ]  # fmt: skip


def _sort(rows: Sequence[MovedWork]) -> list[MovedWork]:
    return sorted(rows, key=lambda row: (-abs(row.change_ns), row.name))
