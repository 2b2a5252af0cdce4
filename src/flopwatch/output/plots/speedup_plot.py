"""Speedups over the baseline, case by case, with their intervals and what arithmetic would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from flopwatch.analysis.summary import Row
from flopwatch.output.columns import NOT_COMPARABLE
from flopwatch.output.plots.axes import RATIO, make_axis, make_lane_axis
from flopwatch.output.plots.lanes import MOST_LANES, Lanes, Table, lay_lanes, read_table
from flopwatch.output.plots.plot import (
    MOST_POINTS,
    Key,
    Label,
    Plot,
    Point,
    Reference,
    Series,
    Tick,
    is_ratio,
)
from flopwatch.output.units import format_ratio, format_speedup

NAME = "speedups"
FEWEST_DOTS = 2
"""One alone is told by the table."""
ARITHMETIC = "what arithmetic alone would give"
UNSURE = "the interval is not known"


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """One, of rows that share a table; none where nothing was compared."""
    compared = [row for row in rows if row.speedup and is_ratio(row.speedup.value)]
    if not compared:
        return
    table = read_table(rows)
    by_variant: dict[str, list[Row]] = {}
    for row in compared:
        by_variant.setdefault(row.record.variant, []).append(row)
    if len(compared) > MOST_LANES:
        yield _make_plot(table, by_variant, *_share_lanes(by_variant))
        return
    positions = {variant: place for place, variant in enumerate(by_variant)}
    lanes = lay_lanes(compared, table, lambda row: positions[row.record.variant])
    notes = lanes.note(lambda row: format_ratio(row.speedup.value if row.speedup else None))
    yield _make_plot(table, by_variant, lanes, notes)


def is_telling(plot: Plot) -> bool:
    return sum(len(one.points) for one in plot.series) >= FEWEST_DOTS


def _share_lanes(by_variant: Mapping[str, Sequence[Row]]) -> tuple[Lanes, tuple[Label, ...]]:
    """A lane for every variant, and in it all its cases, one slightly below the other."""
    placed, ticks, notes = [], [], []
    for lane, (variant, rows) in enumerate(by_variant.items()):
        shown = _thin_rows(rows)
        placed += [
            (-lane + 0.3 - 0.6 * place / max(1, len(shown) - 1), row)
            for place, row in enumerate(shown)
        ]
        ticks.append(Tick(value=-lane, text=variant, series=lane))
        values = [row.speedup.value for row in rows if row.speedup]
        ends = dict.fromkeys([format_ratio(min(values)), format_ratio(max(values))])
        notes.append(Label(y=-lane, text=" to ".join(ends)))
    y = make_lane_axis(ticks, len(by_variant))
    return Lanes(rows=placed, y=y, count=len(by_variant), headings=()), tuple(notes)


def _thin_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """From the fastest to the slowest, both of them among those that stay."""
    ordered = sorted(rows, key=lambda row: -(row.speedup.value if row.speedup else 0))
    last, most = len(ordered) - 1, min(len(ordered), MOST_POINTS)
    return [ordered[round(place * last / max(1, most - 1))] for place in range(most)]


def _make_plot(
    table: Table, by_variant: Mapping[str, Sequence[Row]], lanes: Lanes, notes: tuple[Label, ...]
) -> Plot:
    shared = len(lanes.rows) > MOST_LANES
    points: dict[str, list[Point]] = {variant: [] for variant in by_variant}
    for y, row in lanes.rows:
        point = _make_point(y, row, table)
        # In a crowd the limits of all would hide it; tips have them.
        shown = replace(point, limit=None, is_unsure=False) if shared else point
        points[row.record.variant].append(shown)
    found = [point for many in points.values() for point in many]
    reach = [v for p in found for v in (p.x, p.low, p.high, p.limit) if v is not None]
    baseline = next(iter(by_variant.values()))[0].record.baseline
    x = make_axis("speedup", [*reach, 1.0], RATIO, is_log=True)
    return Plot(
        name=NAME,
        title=f"Speedup over {baseline}",
        subject=table.subject,
        caption=(
            f"Speedups over {baseline}{_tell_intervals(found)}, a mark for each case. Right of 1x "
            f"is faster.{_tell_unsure(found)}"
        ),
        conditions=table.conditions,
        x=x,
        y=lanes.y,
        series=tuple(
            Series(
                name=variant,
                number=table.numbers[variant],
                points=tuple(points[variant]),
                is_small=shared and len(points[variant]) > 10,
            )
            for variant in by_variant
        ),
        names="lanes",
        lanes=lanes.count,
        lane_px=60 if shared else 18,
        headings=lanes.headings,
        notes=notes,
        references=(
            Reference(
                points=((1.0, lanes.y.low), (1.0, lanes.y.high)), text=baseline, text_at="top"
            ),
        ),
        keys=tuple(_list_keys(found)),
    )


def _list_keys(points: Sequence[Point]) -> Iterator[Key]:
    if any(point.limit is not None for point in points):
        yield Key(mark="limit", text=ARITHMETIC)
    if any(point.is_hollow for point in points):
        yield Key(mark="hollow", text=NOT_COMPARABLE)
    if any(point.is_unsure for point in points):
        yield Key(mark="unsure", text=UNSURE)


def _tell_intervals(points: Sequence[Point]) -> str:
    return " with their 99 % intervals" if any(p.low is not None for p in points) else ""


def _tell_unsure(points: Sequence[Point]) -> str:
    """A mark alone would look as if it were exact."""
    number = sum(point.low is None for point in points)
    if number == 0:
        return ""
    if number == len(points):
        return " How far they may be off is not known."
    return f" Of {number} of {len(points)}, how far they may be off is not known."


def _make_point(y: float, row: Row, table: Table) -> Point:
    speedup = row.speedup
    assert speedup is not None
    has_interval = is_ratio(speedup.low, speedup.high)
    limit = row.limit if is_ratio(row.limit) else None
    tip = f"{table.tell(row)}: {format_speedup(speedup)}"
    return Point(
        x=speedup.value,
        y=y,
        low=speedup.low if has_interval else None,
        high=speedup.high if has_interval else None,
        limit=limit,
        tip=tip if limit is None else f"{tip}, limit {format_ratio(limit)}",
        is_hollow=bool(row.differences),
        is_unsure=not has_interval,
    )
