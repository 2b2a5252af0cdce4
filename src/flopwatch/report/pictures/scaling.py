"""Throughput over ranks, beside what it would be if every rank added as much as the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flopwatch.analysis.summary import Row
from flopwatch.report.pictures.axes import make_axis, rate
from flopwatch.report.pictures.curves import (
    RANKS,
    Quantity,
    divide_lines,
    draw_lines,
    is_axis_of_counts,
    is_known,
    over_axis,
)
from flopwatch.report.pictures.lanes import read_table
from flopwatch.report.pictures.picture import Picture, Reference, Series
from flopwatch.report.pictures.throughput import find_throughput
from flopwatch.report.units import format_rate

NAME = "scaling"
TOKENS = rate("tokens/s")
QUANTITY = Quantity(
    name=NAME,
    title="Throughput",
    label="throughput",
    unit=TOKENS,
    caption=(
        "Tokens a second of all ranks together. Dashed: what the job with the fewest ranks would "
        "give if every rank added as much."
    ),
    find=find_throughput,
    show=lambda value: format_rate(value, "tokens/s"),
)


def make_pictures(rows: Sequence[Row]) -> Iterator[Picture]:
    """Of rows that share a table: those that were measured on several numbers of ranks."""
    known = [row for row in rows if RANKS in row.record.params and is_known(find_throughput(row))]
    if not is_axis_of_counts(known, RANKS):
        return
    table = read_table(rows)
    over = over_axis(RANKS)
    for lines in divide_lines(known, over, QUANTITY, table):
        yield _add_ideal(draw_lines(lines, over, QUANTITY, table))


def _add_ideal(picture: Picture) -> Picture:
    series = tuple(_tell_efficiency(one) for one in picture.series)
    ideal = max(series, key=lambda one: one.points[0].y / one.points[0].x)
    per_rank = ideal.points[0].y / ideal.points[0].x
    last = max(point.x for one in series for point in one.points)
    line = ((ideal.points[0].x, ideal.points[0].y), (last, per_rank * last))
    values = [v for one in series for p in one.points for v in (p.y, p.low, p.high) if v]
    return replace(
        picture,
        series=series,
        y=make_axis("throughput", [*values, line[1][1]], TOKENS, is_log=True),
        # Unnamed: the caption says what it is, and its end is where the fastest line has its mark.
        references=(Reference(points=line),),
    )


def _tell_efficiency(one: Series) -> Series:
    """In tips: what part of its own ideal every point reaches."""
    first = one.points[0]
    return replace(
        one,
        points=tuple(
            replace(p, tip=f"{p.tip}, {100 * p.y * first.x / (first.y * p.x):.0f} % of ideal")
            for p in one.points
        ),
    )
