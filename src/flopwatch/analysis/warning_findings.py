"""What warnings are made of: cases with their samples and their baseline, and what is found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flopwatch.analysis.samples import measured_totals_ns
from flopwatch.analysis.summary import conditions, is_foreign
from flopwatch.analysis.trend import Trend, find_trend
from flopwatch.records.record import Record

LEAST_CHANGE = 0.05
"""A trend, or two levels, that differ by less: verdicts need 3 %, and intervals say the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A record that a table would show."""

    record: Record
    baseline: Record | None
    """Of its own run and group, whatever became of it; None for a baseline, and where there is
    none."""
    table: tuple[str, frozenset[str], str, str]
    """Equal for records that share a table, as in `output.tables.divide`."""
    totals_ns: list[float] = field(default_factory=list)
    """Of the measured samples; empty where it failed."""
    ratios: list[float] = field(default_factory=list)
    """Its time over the baseline's, in the rounds that have both; empty for what is in parts."""
    trend: Trend | None = None
    """Of its times; None where they are too few."""
    ratio_trend: Trend | None = None

    @property
    def is_foreign(self) -> bool:
        return is_foreign(self.record)

    @property
    def is_baseline(self) -> bool:
        return self.record.variant == self.record.baseline

    @property
    def is_rival(self) -> bool:
        """Whether it is compared with a baseline."""
        return not self.is_baseline and self.record.kind == "whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One case's part of a warning."""

    record: Record
    fact: str
    """With its numbers, to be read after the case's name."""
    size: float = 0.0
    """The larger, the worse, among findings of one cause."""
    cause: str = ""
    """Findings of one kind and cause are told together."""
    advice: str | None = None
    """Where that of its kind does not fit."""


def gather(records: Iterable[Record]) -> list[Case]:
    """As in tables: of every case, baseline and set of conditions the newest record; what was
    skipped or interrupted only where there is nothing better."""
    listed = list(records)
    by_name = {(record.run_id, record.group_id, record.variant): record for record in listed}
    by_age = sorted(listed, key=lambda record: (_is_complete(record), record.measured_at))
    newest: dict[tuple[str, str, str], tuple[Record, str]] = {}
    for record in by_age:
        like = conditions(record)
        newest[record.case_id, record.baseline, like] = record, like
    totals: dict[int, list[float]] = {}
    return [
        _make_case(
            record, like, by_name.get((record.run_id, record.group_id, record.baseline)), totals
        )
        for record, like in newest.values()
    ]


def _make_case(
    record: Record, like: str, baseline: Record | None, totals: dict[int, list[float]]
) -> Case:
    def find_totals(of: Record) -> list[float]:
        # Every variant of a group asks for the baseline's.
        if id(of) not in totals:
            totals[id(of)] = measured_totals_ns(of)
        return totals[id(of)]

    is_baseline = record.variant == record.baseline
    is_rival = not is_baseline and record.kind == "whole"
    measured = find_totals(record) if record.status == "ok" else []
    ratios: list[float] = []
    if measured and is_rival and baseline is not None:
        ratios = _pair(record, measured, baseline, find_totals(baseline))
    return Case(
        record=record,
        baseline=None if is_baseline else baseline,
        table=(record.suite, frozenset(record.params), record.baseline, like),
        totals_ns=measured,
        ratios=ratios,
        trend=find_trend(measured, LEAST_CHANGE),
        ratio_trend=find_trend(ratios, LEAST_CHANGE),
    )


def _pair(
    record: Record, totals_ns: Sequence[float], baseline: Record, baseline_ns: Sequence[float]
) -> list[float]:
    theirs = dict(zip(baseline.rounds[baseline.warmup_samples :], baseline_ns, strict=True))
    rounds = record.rounds[record.warmup_samples :]
    return [
        total_ns / theirs[round_]
        for round_, total_ns in zip(rounds, totals_ns, strict=True)
        if round_ in theirs
    ]


def _is_complete(record: Record) -> bool:
    return record.status != "skipped" and record.stop_reason != "interrupted"
