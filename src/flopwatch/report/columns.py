"""What stands in a table, column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from flopwatch.analysis.regions import Inside
from flopwatch.analysis.statistics import Verdict
from flopwatch.analysis.summary import Row
from flopwatch.case import format_value
from flopwatch.report.units import (
    format_bytes,
    format_count,
    format_interval,
    format_rate,
    format_ratio,
    format_speedup,
    format_time,
)

Item = TypeVar("Item")
Kind = Literal[
    "word", "detail", "fact", "memory", "rate", "share", "limit", "phase", "interval", "number"
]

DISPENSABLE: tuple[Kind, ...] = (
    "detail", "fact", "memory", "rate", "share", "limit", "phase", "interval"
)  # fmt: skip
"""What a narrow terminal can do without, the least important first."""

UNLIKE = "not like for like"


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    name: str
    cell: Callable[[Item], str]
    """Empty where there is nothing to say."""
    kind: Kind = "number"


@dataclass(frozen=True, slots=True)
class Part:
    """A phase of a case that has no column of its own."""

    row: Row
    phase: str


@dataclass(frozen=True, slots=True)
class Place:
    """A region of a case."""

    row: Row
    region: str
    inside: Inside


def case_columns(rows: Sequence[Row], axes: Sequence[str]) -> list[Column[Row]]:
    """Of a table with a line for every case."""
    known = {phase for row in rows for phase in row.phases_ns}
    several = choose_phases(rows) if len(known) > 1 else []
    columns = [
        *(axis_column(axis, lambda row: row) for axis in axes),
        Column("variant", lambda row: row.record.variant, "word"),
        *map(_phase_column, several),
        Column("total" if several else "time", _time_cell),
        Column("±", lambda row: format_interval(row.total_ns) if row.total_ns else "", "interval"),
        Column("tokens/s", lambda row: format_rate(row.tokens_per_s, "").rstrip(), "rate"),
        Column("FLOP/s", lambda row: format_rate(row.flops_per_s, "FLOP/s"), "rate"),
        Column("bandwidth", lambda row: format_rate(row.bytes_per_s, "B/s"), "rate"),
        Column("peak memory", _memory_cell, "memory"),
        *map(_fact_column, _differing_facts(rows)),
        Column("limit", lambda row: format_ratio(row.limit), "limit"),
        Column("speedup", lambda row: format_speedup(row.speedup) if row.speedup else ""),
        Column("verdict", _verdict_cell, "word"),
    ]
    return _drop_empty(columns, rows)


def choose_phases(rows: Sequence[Row]) -> list[str]:
    """The phases that have a column: the baseline's, or where none was measured, those of the first
    row that was. All others are parts, with a table of their own."""
    measured = [row for row in rows if row.phases_ns]
    baselines = [row for row in measured if row.record.variant == row.record.baseline]
    chosen = baselines or measured[:1]
    return list(dict.fromkeys(phase for row in chosen for phase in row.phases_ns))


def part_columns(parts: Sequence[Part], axes: Sequence[str]) -> list[Column[Part]]:
    """Of a table with a line for every phase that has no column in the table of cases."""
    columns: list[Column[Part]] = [
        *(axis_column(axis, lambda part: part.row) for axis in axes),
        Column("variant", lambda part: part.row.record.variant, "word"),
        Column("part", lambda part: part.phase, "word"),
        Column("time", lambda part: format_time(part.row.phases_ns[part.phase].value)),
        Column("±", lambda part: format_interval(part.row.phases_ns[part.phase]), "interval"),
        Column("share", _share_cell, "share"),
    ]
    return _drop_empty(columns, parts)


def region_columns(places: Sequence[Place], axes: Sequence[str]) -> list[Column[Place]]:
    """Of a table with a line for every region of every case."""
    columns: list[Column[Place]] = [
        *(axis_column(axis, lambda place: place.row) for axis in axes),
        Column("region", lambda place: place.region, "word"),
        Column("variant", lambda place: place.row.record.variant, "word"),
        Column("calls", lambda place: str(place.inside.calls), "fact"),
        Column("each call", lambda place: format_time(place.inside.call_ns.value)),
        Column("±", lambda place: format_interval(place.inside.call_ns), "interval"),
        Column("share", lambda place: f"{100 * place.inside.share.value:.1f} %", "share"),
        Column("FLOP/s", lambda place: format_rate(place.inside.flops_per_s, "FLOP/s"), "rate"),
        Column("limit", lambda place: format_ratio(place.inside.limit), "limit"),
        Column("speedup", lambda p: format_speedup(p.inside.speedup) if p.inside.speedup else ""),
        Column("verdict", lambda p: describe_verdict(p.row, p.inside.verdict), "word"),
    ]
    return _drop_empty(columns, places)


def axis_column(axis: str, row_of: Callable[[Item], Row]) -> Column[Item]:
    def cell(item: Item) -> str:
        return format_value(row_of(item).record.params.get(axis, ""))

    return Column(axis, cell, "word")


def _drop_empty(columns: Sequence[Column[Item]], items: Sequence[Item]) -> list[Column[Item]]:
    """Without the dispensable columns that have nothing to say."""
    return [
        column
        for column in columns
        if column.kind not in DISPENSABLE or any(column.cell(item) for item in items)
    ]


def _share_cell(part: Part) -> str:
    total_ns = part.row.total_ns
    if total_ns is None:
        return ""
    return f"{100 * part.row.phases_ns[part.phase].value / total_ns.value:.1f} %"


def _phase_column(phase: str) -> Column[Row]:
    def cell(row: Row) -> str:
        return format_time(row.phases_ns[phase].value) if phase in row.phases_ns else ""

    return Column(phase, cell, "phase")


def _differing_facts(rows: Sequence[Row]) -> list[str]:
    """Names of the facts in which variants of one group differ, or that only some of them have: the
    others tell them nothing."""
    groups: dict[str, list[Mapping[str, float]]] = {}
    for row in rows:
        if row.total_ns is not None:  # what has failed has none
            groups.setdefault(row.record.group, []).append(row.record.facts)
    names = dict.fromkeys(name for row in rows for name in row.record.facts)
    return [
        name
        for name in names
        if any(len({facts.get(name) for facts in group}) > 1 for group in groups.values())
    ]


def _fact_column(name: str) -> Column[Row]:
    is_size = name.endswith("_bytes")

    def cell(row: Row) -> str:
        if name not in row.record.facts:
            return ""
        value = row.record.facts[name]
        return format_bytes(int(value)) if is_size else format_count(value)

    title = name.removesuffix("_bytes").replace("_", " ")
    # "compile s" would read as a plural.
    title = f"{title.removesuffix(' s')} (s)" if title.endswith(" s") else title
    return Column(title, cell, "fact")


def _memory_cell(row: Row) -> str:
    peak_bytes = row.record.peak_memory_bytes
    return "" if peak_bytes is None else format_bytes(peak_bytes)


def _time_cell(row: Row) -> str:
    return row.record.status if row.total_ns is None else format_time(row.total_ns.value)


def _verdict_cell(row: Row) -> str:
    if row.in_parts:
        return "in parts"
    return "" if row.total_ns is None else describe_verdict(row, row.verdict)


def describe_verdict(row: Row, verdict: Verdict | None) -> str:
    """A verdict on the row or a part of it. The verdict's own word comes first: `verdict_word`."""
    if row.record.variant == row.record.baseline:
        return "baseline"
    return ", ".join(filter(None, [verdict, UNLIKE if row.unlike else None]))


def verdict_word(cell: str) -> str:
    """
    >>> verdict_word("faster, not like for like")
    'faster'
    """
    return cell.partition(",")[0]
