"""Speedups over an axis of counts: from which batch, context or size on a variant pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.break_even import BreakEven, find_break_evens
from flopwatch.analysis.summary import Row
from flopwatch.output.case_tables import format_crossing, group_break_evens, list_tokens
from flopwatch.output.plots.axes import RATIO, make_axis, make_count_axis
from flopwatch.output.plots.lanes import Table, read_table
from flopwatch.output.plots.plot import Axis, Key, Plot, Point, Reference, Series, is_ratio, thin
from flopwatch.output.units import format_speedup

NAME = "break-even"
CROSSES = "crosses 1x, interpolated"
BANDS = "Bands are the 99 % intervals of the speedups."
NO_BANDS = "No speedup here has an interval."
FEWEST_COUNTS = 3
"""Two make a line, and no curve."""


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """One for every axis of counts and set of other parameters; of rows that share a table."""
    compared = [row for row in rows if row.speedup and is_ratio(*_list_values(row))]
    if not compared:
        return
    table = read_table(rows)
    for axis in table.axes:
        for group in group_break_evens(find_break_evens(compared, axis)):
            if len(list_tokens(group)) > 1:
                yield _make_plot(group, table)


def is_telling(plot: Plot) -> bool:
    return len(plot.x.ticks) >= FEWEST_COUNTS


def _list_values(row: Row) -> list[float]:
    """Its speedup, and the ends of the interval where they are known."""
    speedup = row.speedup
    assert speedup is not None
    return [v for v in (speedup.value, speedup.low, speedup.high) if v is not None]


def _make_plot(group: Sequence[BreakEven], table: Table) -> Plot:
    first, axis = group[0].rows[0], group[0].axis
    baseline = first.record.baseline
    x = make_count_axis(axis, list_tokens(group))
    reach = [
        value for break_even in group for row in break_even.rows for value in _list_values(row)
    ]
    y = make_axis("speedup", [*reach, 1.0], RATIO, is_log=True)
    is_bare = all(break_even.is_bare for break_even in group)
    has_bands = any(row.speedup and row.speedup.low for one in group for row in one.rows)
    told = _tell_crossings(group) if is_bare else _tell_starts(group)
    keys = []
    if any(break_even.paying for break_even in group):
        keys.append(Key(mark="ring", text="pays: by its verdict faster, here and further on"))
    if any(break_even.crossings for break_even in group):
        keys.append(
            Key(mark="crossing", text=CROSSES if is_bare else f"{CROSSES}; along 1x its interval")
        )
    return Plot(
        name=NAME,
        title=f"Speedup over {baseline} by {axis}",
        subject=" ".join(filter(None, [table.subject, table.name_case(first, axis)])),
        caption=f"{told} {BANDS if has_bands else NO_BANDS}".lstrip(),
        conditions=table.conditions,
        x=x,
        y=y,
        series=(_draw_baseline(baseline, x), *(_make_series(one, table) for one in group)),
        names="ends",
        references=tuple(
            line for place, one in enumerate(group, 1) for line in _mark_crossings(one, place, y)
        ),
        keys=tuple(keys),
    )


def _draw_baseline(name: str, x: Axis) -> Series:
    points = tuple(Point(x=end, y=1.0, tip=f"{name}, the baseline") for end in (x.low, x.high))
    return Series(name=name, number=0, points=points, is_joined=True, is_small=True)


def _make_series(break_even: BreakEven, table: Table) -> Series:
    variant = break_even.rows[0].record.variant
    return Series(
        name=variant,
        number=table.numbers[variant],
        points=thin(tuple(_make_point(row, break_even, table) for row in break_even.rows)),
        intervals="band",
        is_joined=True,
    )


def _make_point(row: Row, break_even: BreakEven, table: Table) -> Point:
    speedup = row.speedup
    assert speedup is not None
    return Point(
        x=break_even.place(row),
        y=speedup.value,
        low=speedup.low,
        high=speedup.high,
        tip=f"{table.tell(row)}: {format_speedup(speedup)}, {row.verdict}",
        is_hollow=bool(row.differences),
        is_ringed=row in break_even.paying[:1],
    )


def _mark_crossings(break_even: BreakEven, place: int, y: Axis) -> Iterator[Reference]:
    """Down to the axis from where it crosses 1, and along 1 the interval of that."""
    variant = break_even.rows[0].record.variant
    for crossing in break_even.crossings:
        tip = f"{variant} crosses 1x at {break_even.axis}={format_crossing(crossing)}"
        yield Reference(
            points=((crossing.point, 1.0), (crossing.point, y.low)), text=tip, series=place
        )
        if crossing.low is not None and crossing.high is not None:
            yield Reference(
                points=((crossing.low, 1.0), (crossing.high, 1.0)), text=tip, series=place
            )


def _tell_starts(group: Sequence[BreakEven]) -> str:
    """In a sentence; the tables have every number."""
    by_start: dict[int | None, list[str]] = {}
    for break_even in group:
        start = break_even.place(break_even.paying[0]) if break_even.paying else None
        by_start.setdefault(start, []).append(break_even.rows[0].record.variant)
    told = [
        f"{', '.join(by_start[start])} from {group[0].axis}={start} on"
        for start in sorted(start for start in by_start if start is not None)
    ]
    if not told:
        return "At the largest measured, none is clearly faster."
    if None in by_start:
        told.append(f"{', '.join(by_start[None])} nowhere that lasts")
    return f"What pays: {'; '.join(told)}."


def _tell_crossings(group: Sequence[BreakEven]) -> str:
    """Of speedups that nobody knows the noise of."""
    told = [
        f"{one.rows[0].record.variant} crosses 1x at {one.axis} {format_crossing(crossing)}"
        for one in group
        for crossing in one.crossings
    ]
    return f"By their values, {'; '.join(told)}." if told else ""
