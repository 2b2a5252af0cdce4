"""The usual tables of results: cases, their parts and regions, whole layers next to the sums of
their parts, and break-even points; and SHEET_MAKERS, the list of all tables that results have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from flopwatch.analysis.break_even import AXIS, BreakEven, Crossing, find_break_evens, other_params
from flopwatch.analysis.part_times import Inside
from flopwatch.analysis.statistics import CONFIDENCE, Verdict, judge
from flopwatch.analysis.summary import Row, Whole, compare_wholes
from flopwatch.output.columns import (
    NOT_COMPARABLE,
    case_columns,
    choose_phases,
    describe_verdict,
    label_columns,
    mark_speedup,
)
from flopwatch.output.monitor_tables import make_run_sheets
from flopwatch.output.remarks import describe_conditions, instrument_remarks, list_remarks
from flopwatch.output.tables import (
    Column,
    Mark,
    Sheet,
    choose_axes,
    divide,
    drop_empty,
    group_by,
    interval_column,
    number,
    verdict_column,
)
from flopwatch.output.training_tables import (
    make_memory_sheets,
    make_quality_sheets,
    make_rank_sheets,
)
from flopwatch.output.units import format_change, format_measured_ratio


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


def make_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One sheet for every suite, set of axes and set of conditions, and one each of their parts and
    of their regions, if any."""
    sheets = []
    for alike in divide([row for row in rows if row.monitored is None]):
        groups = [list(group) for _, group in groupby(alike, lambda row: row.record.group_id)]
        sheets += [
            _make_sheet(alike, groups),
            *_make_part_sheet(alike),
            *_make_region_sheet(groups),
        ]
    return sheets


def make_sorted_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """The tables of cases, in the order of the rows, without sections. Their rows share no words
    that a title could have instead."""
    return [_make_sheet(alike, [alike], labels=1) for alike in divide(rows)]


def _make_sheet(
    rows: Sequence[Row], groups: Sequence[Sequence[Row]], labels: int | None = None
) -> Sheet:
    title, _ = choose_axes([row.record for row in rows])
    return Sheet(
        title=title,
        columns=case_columns(rows),
        items=groups,
        conditions=describe_conditions(rows[0].record),
        remarks=list_remarks(rows),
        labels=labels,
        rest_in="`flopwatch show --columns`",
    )


def _make_part_sheet(rows: Sequence[Row]) -> list[Sheet]:
    """Phases that have no column of their own, variant by variant; none or one."""
    title, axes = choose_axes([row.record for row in rows])
    columned = choose_phases(rows)
    # Of what has one phase only, the total says all.
    several = [row for row in rows if len(row.phases_ns) > 1]
    found = [[Part(row, ph) for ph in row.phases_ns if ph not in columned] for row in several]
    sections = [section for section in found if section]
    columns: list[Column[Part]] = [
        *label_columns(axes, lambda part: part.row.record),
        Column("part", lambda part: part.phase, "word"),
        number("time", "ns", lambda part: part.row.phases_ns[part.phase], interval="±"),
        interval_column(lambda part: part.row.phases_ns[part.phase]),
        number("share", "share", _find_share, "share"),
    ]
    columns = drop_empty(columns, [part for section in sections for part in section])
    return [Sheet(title=f"{title}, parts", columns=columns, items=sections)] if sections else []


def _find_share(part: Part) -> float | None:
    total_ns = part.row.total_ns
    return None if total_ns is None else part.row.phases_ns[part.phase].value / total_ns.value


def _make_region_sheet(groups: Sequence[Sequence[Row]]) -> list[Sheet]:
    """What instruments saw: the variants of each group, region by region; none or one."""
    title, axes = choose_axes([row.record for group in groups for row in group])
    sections = [
        [Place(row, region, row.regions[region]) for row in group if region in row.regions]
        for group in groups
        for region in dict.fromkeys(region for row in group for region in row.regions)
    ]
    region: Column[Place] = Column("region", lambda place: place.region, "word")
    columns: list[Column[Place]] = [
        *label_columns(axes, lambda place: place.row.record, region),
        number("calls", "integer", lambda place: place.inside.calls, "fact"),
        number("each call", "ns", lambda place: place.inside.call_ns, interval="±"),
        interval_column(lambda place: place.inside.call_ns),
        number("share", "share", lambda place: place.inside.share.value, "share"),
        number("FLOP/s", "FLOP/s", lambda place: place.inside.flops_per_s, "rate"),
        number("limit", "ratio", lambda place: place.inside.limit, "limit"),
        number("speedup", "ratio", lambda place: place.inside.speedup),
        verdict_column("verdict", lambda p: describe_verdict(p.row, p.inside.verdict)),
    ]
    columns = drop_empty(columns, [place for section in sections for place in section])
    remarks = [remark for group in groups for remark in instrument_remarks(group)]
    sheet = Sheet(title=f"{title}, inside", columns=columns, items=sections, remarks=remarks)
    return [sheet] if sections else []


TAKES: dict[Verdict, str] = {
    "faster": "less than the sum",
    "slower": "more than the sum",
    "slightly faster": "slightly less than the sum",
    "slightly slower": "slightly more than the sum",
    "same": "as long as the sum",
    "unclear": "unclear",
}


def make_whole_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every table of cases in which layers were measured in parts too."""
    return [
        _make_whole_sheet(alike, groups)
        for alike in divide(rows)
        if (groups := compare_wholes(alike))
    ]


def _make_whole_sheet(rows: Sequence[Row], groups: Sequence[Sequence[Whole]]) -> Sheet:
    title, axes = choose_axes([row.record for row in rows])
    baseline = rows[0].record.baseline
    columns: list[Column[Whole]] = [
        *label_columns(axes, lambda whole: whole.row.record),
        number("whole", "ns", lambda whole: whole.row.total_ns, "phase"),
        number("sum of parts", "ns", lambda whole: whole.parts.total_ns, "phase"),
        number("speedup", "ratio", lambda whole: whole.row.speedup, "detail"),
        number("speedup of sums", "ratio", lambda whole: whole.parts_speedup, "detail"),
        Column("difference", lambda w: format_change(w.ratio), value=lambda w: w.ratio.value - 1),
        verdict_column("the whole takes", lambda whole: TAKES[judge(whole.ratio.inverse())]),
    ]
    return Sheet(
        title=f"{title}, whole and sum of parts",
        columns=columns,
        items=groups,
        conditions=f"speedup: of the whole layer over {baseline}; of sums: of its parts over "
        f"{baseline}'s parts, the published way; difference: of the whole from the sum",
    )


BELOW: dict[Verdict, str] = {
    "slower": "it is slower",
    "slightly faster": "it is only slightly faster",
    "slightly slower": "it is slightly slower",
    "same": "it is as fast",
    "unclear": "that is unclear",
}
"""What is said of the batch just below break-even."""


def make_break_even_sheets(rows: Sequence[Row], axis: str = AXIS) -> list[Sheet]:
    """One for every table of cases that has variants at several batches."""
    return [
        _make_break_even_sheet(alike, found)
        for alike in divide(rows)
        if (found := find_break_evens(alike, axis))
    ]


def group_break_evens(break_evens: Sequence[BreakEven]) -> list[list[BreakEven]]:
    """Variants of the same shape, dtype and so on together."""
    return group_by(break_evens, lambda each: other_params(each.rows[0], each.axis))


def list_tokens(break_evens: Sequence[BreakEven]) -> list[int]:
    """The values of their axis."""
    return sorted({break_even.place(row) for break_even in break_evens for row in break_even.rows})


def _make_break_even_sheet(rows: Sequence[Row], break_evens: Sequence[BreakEven]) -> Sheet:
    title, axes = choose_axes([row.record for row in rows])
    axis, baseline = break_evens[0].axis, rows[0].record.baseline
    others = [name for name in axes if name != axis]
    columns: list[Column[BreakEven]] = [
        *label_columns(others, lambda break_even: break_even.rows[0].record),
        *map(_value_column, list_tokens(break_evens)),
    ]
    remarks = []
    if any(break_even.crossings for break_even in break_evens):
        columns.append(Column("crosses 1 at", _crossing_cell, "number", _crossing_value))
        remarks.append(_explain_crossings(break_evens))
    columns.append(verdict_column("break-even", describe_break_even))
    is_bare = all(break_even.is_bare for break_even in break_evens)
    ground = "by single values, without a verdict," if is_bare else "by its verdict"
    values = "batches" if axis == AXIS else f"values of {axis}"
    return Sheet(
        title=f"{title}, speedup by {axis}",
        columns=columns,
        items=group_break_evens(break_evens),
        conditions=f"break-even: {ground} faster than {baseline}, at all {values} measured from "
        "there on",
        remarks=remarks,
    )


def _explain_crossings(break_evens: Sequence[BreakEven]) -> str:
    crossed = [break_even for break_even in break_evens if break_even.crossings]
    straight = "crosses 1 at: interpolated straight in logarithms between measured values"
    if all(break_even.is_bare for break_even in crossed):
        return f"{straight}; single values have no interval, and so the point has none"
    return (
        f"{straight}; in brackets where the ends of the {100 * CONFIDENCE:g} % intervals cross, "
        "which covers noise, not the shape of the curve"
    )


def _value_column(value: int) -> Column[BreakEven]:
    """Of one batch: speedups with marks, since many intervals have no room."""

    def find(break_even: BreakEven) -> Row | None:
        return next((row for row in break_even.rows if break_even.place(row) == value), None)

    def cell(break_even: BreakEven) -> str:
        row = find(break_even)
        return "" if row is None or row.speedup is None else format_measured_ratio(row.speedup)

    def marks(break_even: BreakEven) -> Sequence[Mark]:
        row = find(break_even)
        return () if row is None else mark_speedup(row)

    def speedup(break_even: BreakEven) -> float | None:
        row = find(break_even)
        return None if row is None or row.speedup is None else row.speedup.value

    return Column(str(value), cell, "detail", speedup, unit="ratio", marks=marks)


def _crossing_cell(break_even: BreakEven) -> str:
    """Of several, points only: the table would have no room for anything else."""
    if len(break_even.crossings) > 1:
        return ", ".join(_round(crossing.point) for crossing in break_even.crossings)
    return "".join(map(format_crossing, break_even.crossings))


def _crossing_value(break_even: BreakEven) -> float | None:
    """The first, for sorting."""
    return break_even.crossings[0].point if break_even.crossings else None


def format_crossing(crossing: Crossing) -> str:
    if crossing.low is None or crossing.high is None:
        return f"about {_round(crossing.point)}"
    return f"{_round(crossing.point)} [{_round(crossing.low)}, {_round(crossing.high)}]"


def _round(value: float) -> str:
    """
    >>> [_round(value) for value in (7.0312, 143.7, 12345.0)]
    ['7.03', '144', '12300']
    """
    return f"{float(f'{value:.3g}'):.12g}"


def describe_break_even(break_even: BreakEven) -> str:
    fairness = NOT_COMPARABLE if any(row.differences for row in break_even.rows) else ""
    return ", ".join(filter(None, [_describe_outcome(break_even), fairness]))


def _describe_outcome(break_even: BreakEven) -> str:
    if break_even.is_bare and break_even.outcome != "unclear":
        return _describe_bare(break_even)
    rows, paying, below = break_even.rows, break_even.paying, break_even.below
    axis, place = break_even.axis, break_even.place
    if below is None:
        return f"at {_every(axis)} measured, from {_name_value(axis, place(rows[0]))} on"
    several = f", and it crosses {len(break_even.crossings)} times"
    to_and_fro = several if break_even.outcome == "several" else ""
    if paying:
        assert below.verdict is not None
        return (
            f"from {_name_value(axis, place(paying[0]))} on; "
            f"at {place(below)} {BELOW[below.verdict]}{to_and_fro}"
        )
    last = _name_value(axis, place(rows[-1]))
    faster = [str(place(row)) for row in rows if row.verdict == "faster"]
    at_last = {"unclear": "unclear", "slightly faster": "only slightly"}.get(rows[-1].verdict or "")
    if faster:
        return f"{at_last or 'not'} at {last}, but at {', '.join(faster)}{to_and_fro}"
    return f"{at_last or 'never'}, up to {last}"


def _name_value(axis: str, value: object) -> str:
    """
    >>> _name_value("tokens", 64), _name_value("batch_size", 64)
    ('64 tokens', 'batch_size 64')
    """
    return f"{value} {axis}" if axis == AXIS else f"{axis} {value}"


def _every(axis: str) -> str:
    return "every batch" if axis == AXIS else "every value"


def _describe_bare(break_even: BreakEven) -> str:
    """By values without intervals, which make no verdict."""
    rows, axis, place = break_even.rows, break_even.axis, break_even.place
    first, last = (_name_value(axis, place(row)) for row in (rows[0], rows[-1]))
    pairs = [f"{place(each.below)} and {place(each.above)}" for each in break_even.crossings]
    between = f"between {_name_value(axis, ', '.join(pairs))}"
    words = {
        "from": f"from {between} on",
        "up-to": f"up to {between}",
        "always": f"at {_every(axis)} measured, from {first} on",
        "never": f"never, up to {last}",
        "several": f"to and fro: it crosses {between}",
    }
    return f"{words[break_even.outcome]}, by values alone"


SHEET_MAKERS: tuple[Callable[[Sequence[Row]], list[Sheet]], ...] = (
    make_sheets,
    make_run_sheets,
    make_rank_sheets,
    make_memory_sheets,
    make_whole_sheets,
    make_break_even_sheets,
    make_quality_sheets,
)
"""What makes the usual tables, in order."""


def make_all_sheets(rows: Sequence[Row]) -> list[Sheet]:
    return [sheet for make in SHEET_MAKERS for sheet in make(rows)]
