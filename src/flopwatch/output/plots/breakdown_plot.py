"""Where the time goes, row by row of the breakdown: bars that end at the measured time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.step_breakdown import (
    FASTER,
    REST,
    BreakdownRow,
    StepBreakdown,
    make_breakdown,
)
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import TIME, make_axis
from flopwatch.output.plots.lanes import Table, divide_lanes, lay_lanes, read_table
from flopwatch.output.plots.plot import Bar, Plot, Series, is_drawable
from flopwatch.output.units import format_time

NAME = "breakdown"
LANE_PX = 22.0
STYLES = {
    "matmuls": (1, 0),
    "shape": (1, 1),
    "dtype": (1, 2),
    "attention": (2, 0),
    "elements": (3, 0),
    "logits": (3, 1),
    "memory": (3, 0),
    "traffic": (3, 2),
    "optimizer": (4, 0),
    "waiting": (5, 1),
    "transfer": (5, 0),
    "gaps": (0, 0),
    REST: (0, 3),
    FASTER: (0, 1),
}
"""Colour and shade of each row: what belongs together has one colour."""
VISIBLE = 0.01
"""Of the longest bar: for less than that, there is no room left of 0."""
SHORT = {
    "matmuls": "matmuls",
    "shape": "shape",
    "dtype": "dtype",
    "elements": "element-wise",
    "logits": "loss",
    "memory": "memory",
    "traffic": "traffic",
    "waiting": "waiting",
    "transfer": "transfer",
    "gaps": "launches",
}
"""Of names that a bar would have no room for."""


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those whose FLOPs or bytes are held against known limits."""
    counted = [row for row in rows if row.total_ns is not None and _declares(row)]
    table = read_table(rows) if counted else None
    for some in divide_lanes(counted):
        breakdowns = {
            id(row): breakdown for row in some if (breakdown := _explain(row)) is not None
        }
        shown = [row for row in some if id(row) in breakdowns]
        if shown and table is not None:
            yield _make_plot(shown, breakdowns, table)


def is_telling(plot: Plot) -> bool:
    """One share of the peak is told by the table."""
    return len(plot.series) > 2


def _declares(row: Row) -> bool:
    """What others have published has its dimensions instead."""
    record = row.record
    return bool(record.flops or record.bytes or record.job)


def _explain(row: Row) -> StepBreakdown | None:
    breakdown = make_breakdown(row.record)
    if breakdown is None or not breakdown.is_explained:
        return None
    return breakdown if is_drawable(*(each.time_ns for each in breakdown.rows)) else None


def _make_plot(rows: Sequence[Row], breakdowns: dict[int, StepBreakdown], table: Table) -> Plot:
    lanes = lay_lanes(rows, table, lane_px=LANE_PX)
    bars: dict[str, list[Bar]] = {}
    names: dict[str, str] = {}
    longest_ns = max(breakdown.total_ns for breakdown in breakdowns.values())
    for y, row in lanes.rows:
        breakdown = breakdowns[id(row)]
        for each, start, end in _stack(breakdown, VISIBLE * longest_ns):
            key = FASTER if end <= 0 and each.key == REST else each.key
            tip = _tell(table, row, each, breakdown)
            bar = Bar(y=y, start=start, end=end, tip=tip, text=SHORT.get(each.key, each.name))
            bars.setdefault(key, []).append(bar)
            names.setdefault(key, each.name)
    ends = [place for many in bars.values() for bar in many for place in (bar.start, bar.end)]
    return Plot(
        name=NAME,
        title="Where the time goes, beside what the hardware allows",
        subject=table.subject,
        caption=(
            "Rows of the breakdown, one after the other: matmuls and memory at the rates of the "
            "hardware, what is lost beside them, and what was measured. On the right, the "
            f"{table.middle} of whole runs; where rows come to more than that, the difference lies "
            "left of 0."
        ),
        conditions=table.conditions,
        x=make_axis("time of a run", [0.0, *ends], TIME),
        y=lanes.y,
        series=tuple(
            Series(
                name=names[key],
                number=STYLES[key][0],
                shade=STYLES[key][1],
                bars=tuple(bars[key]),
            )
            for key in STYLES
            if key in bars
        ),
        names="top",
        lanes=lanes.count,
        lane_px=LANE_PX,
        headings=lanes.headings,
        notes=lanes.note(lambda row: format_time(breakdowns[id(row)].total_ns)),
    )


def _stack(
    breakdown: StepBreakdown, visible_ns: float
) -> Iterator[tuple[BreakdownRow, float, float]]:
    """From 0 to the right; what is less than nothing lies left of it."""
    start_ns = 0.0
    for row in breakdown.rows:
        if row.time_ns > 0:
            yield row, start_ns, start_ns + row.time_ns
            start_ns += row.time_ns
        elif row.time_ns < -visible_ns:
            yield row, row.time_ns, 0.0


def _tell(table: Table, row: Row, each: BreakdownRow, breakdown: StepBreakdown) -> str:
    sign = "−" if each.time_ns < 0 else ""
    share = 100 * each.time_ns / breakdown.total_ns
    return (
        f"{table.tell(row)}: {each.name} {sign}{format_time(abs(each.time_ns))}, {share:.1f} %, "
        f"{each.basis}"
    )
