"""Where the time goes, as tables and as JSON: the breakdown of each case, its operations against
their roofs, and what moved between two sets of results, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flopwatch.analysis.comparable import Matched
from flopwatch.analysis.hardware_limits import Operation
from flopwatch.analysis.run_shifts import find_shifts, key_of
from flopwatch.analysis.statistics import THRESHOLD
from flopwatch.analysis.step_breakdown import (
    BreakdownRow,
    Moved,
    MovedRow,
    Movement,
    StepBreakdown,
    make_breakdown,
)
from flopwatch.analysis.summary import Row
from flopwatch.output.columns import label_columns
from flopwatch.output.compare_json import differences_as_dict
from flopwatch.output.compare_tables import count_differences, describe_left
from flopwatch.output.run_warnings import describe_size
from flopwatch.output.tables import (
    Column,
    Item,
    Kind,
    Sheet,
    choose_axes,
    divide,
    group_by,
    number,
    suite_and_axes,
)
from flopwatch.output.units import (
    format_rate,
    format_signed_share,
    format_signed_time,
    format_time,
    plural,
    three_figures,
)
from flopwatch.records.record import Record

MOST_CASES = 12
"""In one table, unless more are asked for."""
UNSTEADY = 1.3
"""A median that is so many times the fastest run is not the work's alone."""
TITLE = "breakdown"
WHOLE = "total"
CONDITIONS = (
    "counted: FLOPs over the peak, bytes over the bandwidth; predicted: by the cost model; to gain:"
    " at the most, the time above the ideal"
)
ROOF_CONDITIONS = (
    "limit: the peak, or bandwidth times FLOPs for each byte, whichever is less; bytes: the least "
    "that must be moved, a cache holding none of them"
)


ABOVE = {
    "memory": "a cache holds some of it, or the bandwidth was measured while others used it too",
    "compute": "the peak was measured too low, or some of its FLOPs are never computed",
}
"""How that can be, by bound."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the breakdown of a case."""

    case: Row
    breakdown: StepBreakdown
    row: BreakdownRow | None
    """None: the total."""


@dataclass(frozen=True, slots=True)
class Roof:
    """An operation of a case."""

    case: Row
    operation: Operation


Explained = tuple[Row, StepBreakdown]


def explain_rows(rows: Iterable[Row]) -> list[Explained]:
    """The measured ones, each with its breakdown."""
    found = ((row, make_breakdown(row.record)) for row in rows)
    return [(row, breakdown) for row, breakdown in found if breakdown is not None]


def make_page_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """For a page: of cases that declare FLOPs, the first few of each table."""
    counted = [row for row in rows if row.total_ns is not None and row.record.flops]
    return [
        sheet
        for alike in divide(counted)
        for sheet in make_breakdown_sheets(alike, most=MOST_CASES)
    ]


def make_breakdown_sheets(rows: Sequence[Row], most: int) -> list[Sheet]:
    """Of each table of cases, the breakdowns of the first `most`."""
    return [
        _make_breakdown_sheet(alike, explained, len(measured) - len(explained))
        for alike in divide(rows)
        if (measured := [row for row in alike if row.total_ns is not None])
        and (explained := explain_rows(measured[:most]))
    ]


def make_roof_sheets(rows: Sequence[Row], most: int) -> list[Sheet]:
    """Of each table of cases, the operations of the first `most` that have roofs."""
    sheets = []
    for alike in divide(rows):
        measured = [row for row in alike if row.total_ns is not None][:most]
        sections = [
            [Roof(row, operation) for operation in breakdown.operations]
            for row, breakdown in explain_rows(measured)
        ]
        known = [section for section in sections if section]
        if known:
            sheets.append(_make_roof_sheet(alike, known))
    return sheets


def _make_breakdown_sheet(rows: Sequence[Row], explained: Sequence[Explained], left: int) -> Sheet:
    title, axes = choose_axes([row.record for row in rows])
    columns: list[Column[Line]] = [
        *label_columns(axes, lambda line: line.case.record),
        Column("part", lambda line: line.row.name if line.row else WHOLE, "word"),
        _time_column("time", _find_time_ns),
        _share_column("share", lambda line: _find_time_ns(line) / line.breakdown.total_ns),
        _time_column("to gain", lambda line: line.row.gain_ns if line.row else None, "throughput"),
        Column("bound by", lambda line: line.row.bound if line.row else "", "fact", has_words=True),
        Column(
            "basis",
            lambda line: line.row.basis if line.row else "measured",
            "interval",
            has_words=True,
        ),
    ]
    more = f"`flopwatch explain --most {len(explained) + left}`"
    return Sheet(
        title=f"{title}, {TITLE}",
        columns=columns,
        items=[
            [Line(row, breakdown, each) for each in (None, *breakdown.rows)]
            for row, breakdown in explained
        ],
        conditions=CONDITIONS,
        remarks=[
            *([f"{plural(left, 'more case')} like that: {more}"] if left > 0 else []),
            *_list_remarks([breakdown for _, breakdown in explained]),
        ],
    )


def _make_roof_sheet(rows: Sequence[Row], sections: Sequence[Sequence[Roof]]) -> Sheet:
    title, axes = choose_axes([row.record for row in rows])
    columns: list[Column[Roof]] = [
        *label_columns(axes, lambda roof: roof.case.record),
        Column("operation", lambda roof: roof.operation.name, "word"),
        number("time", "ns", lambda roof: roof.operation.time_ns),
        Column(
            "FLOPs/byte",
            lambda roof: three_figures(roof.operation.intensity),
            value=lambda roof: roof.operation.intensity,
        ),
        number("reached", "FLOP/s", lambda roof: roof.operation.reached_flops_per_s, "rate"),
        number("limit", "FLOP/s", lambda roof: roof.operation.limit_flops_per_s, "rate"),
        number("of limit", "share", lambda roof: roof.operation.share),
        Column("bound by", lambda roof: roof.operation.bound, "fact", has_words=True),
    ]
    return Sheet(
        title=f"{title}, roofline",
        columns=columns,
        items=sections,
        conditions=ROOF_CONDITIONS,
        remarks=_list_above([roof.operation for section in sections for roof in section]),
    )


def _list_above(operations: Sequence[Operation]) -> list[str]:
    """What is above its roof, and how that can be."""
    remarks = []
    for bound, reason in ABOVE.items():
        names = dict.fromkeys(o.name for o in operations if o.share > 1 and o.bound == bound)
        if names:
            remarks.append(
                f"{', '.join(names)}: more than the limit of {bound}: {reason}; `flopwatch peaks` "
                "measures it again"
            )
    return remarks


def _find_time_ns(line: Line) -> float:
    return line.row.time_ns if line.row else line.breakdown.total_ns


def _time_column(
    name: str, find_ns: Callable[[Item], float | None], kind: Kind = "number"
) -> Column[Item]:
    """A part may be less than nothing, where others were counted too high."""
    return Column(name, lambda item: format_signed_time(find_ns(item)), kind, find_ns)


def _share_column(
    name: str, find: Callable[[Item], float | None], kind: Kind = "number"
) -> Column[Item]:
    return Column(name, lambda item: format_signed_share(find(item), sign="-"), kind, find)


def _list_remarks(breakdowns: Sequence[StepBreakdown]) -> list[str]:
    """What is not known, each once, and then which rates were taken."""
    missing: dict[str, list[str]] = {}
    for breakdown in breakdowns:
        for remark in breakdown.remarks:
            missing.setdefault(remark, []).append(breakdown.record.variant)
    unknown = [
        remark
        if len(variants) == len(breakdowns)
        else f"{', '.join(dict.fromkeys(variants))}: {remark}"
        for remark, variants in missing.items()
    ]
    rates = dict.fromkeys(
        _describe_rates(breakdown) for breakdown in breakdowns if breakdown.is_explained
    )
    return [*unknown, *_describe_spread(breakdowns), *rates]


def _describe_spread(breakdowns: Sequence[StepBreakdown]) -> list[str]:
    """None or one, with the case whose runs differ most."""
    widest = max(breakdowns, key=lambda breakdown: breakdown.total_ns / breakdown.fastest_ns)
    if widest.total_ns < UNSTEADY * widest.fastest_ns:
        return []
    return [
        f"{widest.record.variant}: its fastest run took {format_time(widest.fastest_ns)}, and the "
        f"median {format_time(widest.total_ns)}: what other work on the machine takes is in what "
        "is not explained"
    ]


def _describe_rates(breakdown: StepBreakdown) -> str:
    """The peaks and the bandwidth that a breakdown was counted with."""
    limits = breakdown.limits
    rates = [
        f"{name} {format_rate(limits.peaks[name].flops_per_s, 'FLOP/s')} "
        f"({limits.peaks[name].source})"
        for name in breakdown.arithmetics
        if name in limits.peaks
    ]
    if limits.bandwidth is not None:
        rate = format_rate(limits.bandwidth.bytes_per_s, "B/s")
        rates.append(f"memory {rate} ({limits.bandwidth.source})")
    has_predicted = any(row.basis == "predicted" for row in breakdown.rows)
    model = f"; the cost model's parameters are {limits.stack}" if has_predicted else ""
    return f"counted with {', '.join(rates)}{model}"


def as_dict(explained: Explained) -> dict[str, Any]:
    """For ``--json``."""
    _, breakdown = explained
    record, limits = breakdown.record, breakdown.limits
    return {
        **_case_as_dict(record),
        "total_ns": breakdown.total_ns,
        "fastest_ns": breakdown.fastest_ns,
        "rows": _rows_as_dicts(breakdown),
        "operations": [_operation_as_dict(each) for each in breakdown.operations],
        "limits": {
            "peaks": {
                name: {"flops_per_s": peak.flops_per_s, "source": peak.source}
                for name, peak in limits.peaks.items()
            },
            "bandwidth_bytes_per_s": limits.bandwidth and limits.bandwidth.bytes_per_s,
            "bandwidth_source": limits.bandwidth and limits.bandwidth.source,
            "cost_model": limits.stack,
        },
        "remarks": list(breakdown.remarks),
        "run_id": record.run_id,
        "case_id": record.case_id,
    }


def _case_as_dict(record: Record) -> dict[str, Any]:
    return {"suite": record.suite, "params": record.params, "variant": record.variant}


def _rows_as_dicts(breakdown: StepBreakdown) -> list[dict[str, Any]]:
    return [
        {
            **asdict(row),
            "name": row.name,
            "share": row.time_ns / breakdown.total_ns,
            "gain_ns": row.gain_ns,
        }
        for row in breakdown.rows
    ]


def _operation_as_dict(operation: Operation) -> dict[str, Any]:
    return {
        **asdict(operation),
        "flops_per_byte": operation.intensity,
        "reached_flops_per_s": operation.reached_flops_per_s,
        "limit_flops_per_s": operation.limit_flops_per_s,
        "share_of_limit": operation.share,
        "bound": operation.bound,
    }


MOVED_CONDITIONS = (
    "what moved most comes first; of the change: negative where a row moved against it"
)
NOISE = "`flopwatch compare` says which changes are more than noise"


@dataclass(frozen=True, slots=True)
class MovedLine:
    movement: Movement
    row: MovedRow


def make_moved_sheets(moved: Moved, most: int) -> list[Sheet]:
    """One for every suite and set of axes; the cases that moved most come first."""
    ordered = sorted(moved.movements, key=lambda one: -abs(one.change_ns))
    divided = group_by(ordered, lambda one: suite_and_axes(one.new.record))
    return [_make_moved_sheet(some[:most], len(some) - most) for some in divided]


def _make_moved_sheet(movements: Sequence[Movement], left: int) -> Sheet:
    title, axes = choose_axes([one.new.record for one in movements])
    columns: list[Column[MovedLine]] = [
        *label_columns(axes, lambda line: line.movement.new.record),
        Column("part", lambda line: line.row.name, "word"),
        _time_column("old", lambda line: line.row.old_ns),
        _time_column("new", lambda line: line.row.new_ns),
        Column(
            "change",
            lambda line: format_signed_time(line.row.change_ns, plus="+"),
            value=lambda line: line.row.change_ns,
        ),
        _share_column("of the change", _find_moved_share, "share"),
    ]
    return Sheet(
        title=f"{title}, what moved",
        columns=columns,
        items=[_list_lines(movement) for movement in movements],
        conditions=MOVED_CONDITIONS,
        remarks=[f"{plural(left, 'more case')}: --most shows them"] if left > 0 else [],
    )


def _list_lines(movement: Movement) -> list[MovedLine]:
    whole = MovedRow(key="", name=WHOLE, old_ns=movement.old.total_ns, new_ns=movement.new.total_ns)
    moved = [row for row in movement.rows if row.change_ns]
    return [MovedLine(movement, row) for row in (whole, *moved)]


def _find_moved_share(line: MovedLine) -> float | None:
    whole_ns = line.movement.change_ns
    return line.row.change_ns / whole_ns if whole_ns else None


def describe_moved(moved: Moved) -> list[str]:
    """What the tables do not say."""
    movements, matched = moved.movements, moved.matched
    remarks = dict.fromkeys(r for one in movements for r in (*one.old.remarks, *one.new.remarks))
    left = {
        "no longer measured": matched.broken,
        "only in the old results": matched.only_old,
        "only in the new results": matched.only_new,
    }
    return [
        *_describe_machine(matched),
        *count_differences([one.differences for one in movements]),
        *remarks,
        *describe_left(left),
        *([NOISE] if movements else []),
    ]


def _describe_machine(matched: Matched) -> list[str]:
    """Times are by the clock here: where all of them moved alike, that is hardly the code."""
    newest = [pair.new[-1] for pair in matched.pairs]
    yardsticks = {key_of(record) for record in newest if record.variant == record.baseline}
    ratio = find_shifts(matched.pairs, yardsticks, THRESHOLD).machine
    if ratio is None:
        return []
    return [
        f"all cases, baselines included, {describe_size(ratio)}: the machine was in another state, "
        "and moved these rows; `flopwatch compare` goes by ratios to the baseline"
    ]


def moved_as_dict(moved: Moved) -> dict[str, Any]:
    """For ``--json``."""
    sides = ("broken", "only_old", "only_new")
    return {
        "movements": [_movement_as_dict(one) for one in moved.movements],
        **{side: list(map(_case_as_dict, getattr(moved.matched, side))) for side in sides},
    }


def _movement_as_dict(one: Movement) -> dict[str, Any]:
    return {
        **_case_as_dict(one.new.record),
        "old_variant": one.old.record.variant,
        "old_ns": one.old.total_ns,
        "new_ns": one.new.total_ns,
        "change_ns": one.change_ns,
        "rows": [{**asdict(row), "change_ns": row.change_ns} for row in one.rows],
        "old_rows": _rows_as_dicts(one.old),
        "new_rows": _rows_as_dicts(one.new),
        "differences": differences_as_dict(one.differences),
    }
