"""What stands in a table, column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from flopwatch.analysis.peak_share import Standard
from flopwatch.analysis.region_times import Inside
from flopwatch.analysis.statistics import Estimate, Verdict
from flopwatch.analysis.summary import Row
from flopwatch.output.units import (
    format_bytes,
    format_count,
    format_interval,
    format_measured_time,
    format_rate,
    format_ratio,
    format_share,
    format_speedup,
    format_time,
)
from flopwatch.suites.case import format_value

Item = TypeVar("Item")
Value = float | str | None
"""What stands behind a text: for sorting, and for formats that machines read."""
Kind = Literal[
    "word", "detail", "fact", "memory", "rate", "share", "limit", "phase", "interval", "throughput",
    "number",
]  # fmt: skip

DISPENSABLE: tuple[Kind, ...] = (
    "detail", "fact", "memory", "rate", "share", "limit", "phase", "interval", "throughput"
)  # fmt: skip
"""What a narrow terminal can do without, the least important first."""

UNLIKE = "not like for like"

OF_PEAK: dict[Standard, str] = {"nominal": "of peak", "measured": "of measured peak"}


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    name: str
    cell: Callable[[Item], str]
    """Empty where there is nothing to say."""
    kind: Kind = "number"
    value: Callable[[Item], Value] | None = None
    """The raw number behind the text, in plain units (ns, bytes, FLOP/s, 1 for 100 %); where there
    is no such function, the text is all there is."""

    def find_value(self, item: Item) -> Value:
        return self.cell(item) or None if self.value is None else self.value(item)


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
        Column("total" if several else "time", _time_cell, value=lambda r: middle(r.total_ns)),
        _interval_column(lambda row: row.total_ns),
        rate_column("tokens/s", lambda row: row.tokens_per_s, "throughput"),
        rate_column("FLOP/s", lambda row: row.flops_per_s, "rate"),
        *(_peak_column(title, standard) for standard, title in choose_peaks(rows).items()),
        share_column("MFU", lambda row: find_utilisation_share(row, "mfu"), "throughput"),
        *([share_column("HFU", _find_hfu, "throughput")] if _computes_again(rows) else []),
        rate_column("bandwidth", lambda row: row.bytes_per_s, "rate", "B/s"),
        bytes_column("peak memory", lambda row: row.record.peak_memory_bytes, "memory"),
        *map(_fact_column, _differing_facts(rows)),
        _limit_column(lambda row: row.limit),
        speedup_column("speedup", lambda row: row.speedup),
        Column("verdict", verdict_cell, "word"),
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
        time_column("time", lambda part: part.row.phases_ns[part.phase]),
        _interval_column(lambda part: part.row.phases_ns[part.phase]),
        share_column("share", _find_share, "share"),
    ]
    return _drop_empty(columns, parts)


def region_columns(places: Sequence[Place], axes: Sequence[str]) -> list[Column[Place]]:
    """Of a table with a line for every region of every case."""
    columns: list[Column[Place]] = [
        *(axis_column(axis, lambda place: place.row) for axis in axes),
        Column("region", lambda place: place.region, "word"),
        Column("variant", lambda place: place.row.record.variant, "word"),
        Column("calls", lambda p: str(p.inside.calls), "fact", lambda p: p.inside.calls),
        time_column("each call", lambda place: place.inside.call_ns),
        _interval_column(lambda place: place.inside.call_ns),
        share_column("share", lambda place: place.inside.share.value, "share"),
        rate_column("FLOP/s", lambda place: place.inside.flops_per_s, "rate"),
        _limit_column(lambda place: place.inside.limit),
        speedup_column("speedup", lambda place: place.inside.speedup),
        Column("verdict", lambda p: describe_verdict(p.row, p.inside.verdict), "word"),
    ]
    return _drop_empty(columns, places)


def axis_column(axis: str, row_of: Callable[[Item], Row]) -> Column[Item]:
    def cell(item: Item) -> str:
        return format_value(row_of(item).record.params.get(axis, ""))

    return Column(
        axis, cell, "word", lambda item: plain_value(row_of(item).record.params.get(axis))
    )


def plain_value(value: object) -> Value:
    """A parameter as a number or a text."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return format_value(value)


def time_column(
    name: str, find: Callable[[Item], Estimate | None], kind: Kind = "number"
) -> Column[Item]:
    return Column(
        name, lambda item: format_measured_time(find(item)), kind, lambda item: middle(find(item))
    )


def speedup_column(
    name: str, find: Callable[[Item], Estimate | None], kind: Kind = "number"
) -> Column[Item]:
    def cell(item: Item) -> str:
        speedup = find(item)
        return "" if speedup is None else format_speedup(speedup)

    return Column(name, cell, kind, lambda item: middle(find(item)))


def share_column(
    name: str, find: Callable[[Item], float | None], kind: Kind = "number"
) -> Column[Item]:
    return Column(name, lambda item: format_share(find(item)), kind, find)


def bytes_column(
    name: str, find: Callable[[Item], float | None], kind: Kind = "number"
) -> Column[Item]:
    def cell(item: Item) -> str:
        size_bytes = find(item)
        return "" if size_bytes is None else format_bytes(size_bytes)

    return Column(name, cell, kind, find)


def count_column(name: str, find: Callable[[Item], float], kind: Kind = "number") -> Column[Item]:
    return Column(name, lambda item: format_count(find(item)), kind, find)


def plain_time_column(
    name: str, find_ns: Callable[[Item], float], kind: Kind = "number"
) -> Column[Item]:
    """Of a time without an interval."""
    return Column(name, lambda item: format_time(find_ns(item)), kind, find_ns)


def middle(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _interval_column(find: Callable[[Item], Estimate | None]) -> Column[Item]:
    def cell(item: Item) -> str:
        estimate = find(item)
        return "" if estimate is None else format_interval(estimate)

    def value(item: Item) -> float | None:
        estimate = find(item)
        return None if estimate is None else estimate.half_width

    return Column("±", cell, "interval", value)


def rate_column(
    name: str, find: Callable[[Item], float | None], kind: Kind, unit: str = ""
) -> Column[Item]:
    """Where the heading is the unit, cells have only its prefix."""
    return Column(name, lambda item: format_rate(find(item), unit).rstrip(), kind, find)


def _limit_column(find: Callable[[Item], float | None]) -> Column[Item]:
    return Column("limit", lambda item: format_ratio(find(item)), "limit", find)


def _drop_empty(columns: Sequence[Column[Item]], items: Sequence[Item]) -> list[Column[Item]]:
    """Without the dispensable columns that have nothing to say."""
    return [
        column
        for column in columns
        if column.kind not in DISPENSABLE or any(column.cell(item) for item in items)
    ]


def _find_share(part: Part) -> float | None:
    total_ns = part.row.total_ns
    return None if total_ns is None else part.row.phases_ns[part.phase].value / total_ns.value


def _phase_column(phase: str) -> Column[Row]:
    return time_column(phase, lambda row: row.phases_ns.get(phase), "phase")


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
    def cell(row: Row) -> str:
        return "" if name not in row.record.facts else format_fact(name, row.record.facts[name])

    return Column(name_fact(name), cell, "fact", lambda row: row.record.facts.get(name))


def format_fact(name: str, value: float) -> str:
    return format_bytes(int(value)) if name.endswith("_bytes") else format_count(value)


def name_fact(name: str) -> str:
    """A fact's heading.

    >>> [name_fact(name) for name in ("kept_for_backward_bytes", "compile_s")]
    ['kept for backward', 'compile (s)']
    """
    title = name.removesuffix("_bytes").replace("_", " ")
    # "compile s" would read as a plural.
    return f"{title.removesuffix(' s')} (s)" if title.endswith(" s") else title


def _peak_column(title: str, standard: Standard) -> Column[Row]:
    return share_column(title, lambda row: find_peak_share(row, standard), "share")


def find_peak_share(row: Row, standard: Standard) -> float | None:
    found = row.of_peak.get(standard)
    return None if found is None else found.share


def choose_peaks(rows: Sequence[Row]) -> dict[Standard, str]:
    """What part of which peaks has a column: where there is an MFU, that says it."""
    has_mfu = any(row.utilisation and row.utilisation.mfu is not None for row in rows)
    return {} if has_mfu else OF_PEAK


def _computes_again(rows: Sequence[Row]) -> bool:
    """Whether any HFU is not the MFU."""
    used = [row.utilisation for row in rows if row.utilisation]
    return any(each.hfu != each.mfu for each in used)


def _find_hfu(row: Row) -> float | None:
    return find_utilisation_share(row, "hfu")


def find_utilisation_share(row: Row, name: Literal["mfu", "hfu"]) -> float | None:
    return None if row.utilisation is None else getattr(row.utilisation, name)


def _time_cell(row: Row) -> str:
    return format_measured_time(row.total_ns) or row.record.status


def verdict_cell(row: Row) -> str:
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
