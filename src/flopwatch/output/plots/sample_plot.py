"""Samples in the order in which they were taken: warm-up, drift, outliers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.statistics import median
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import COUNT, TIME, make_axis
from flopwatch.output.plots.lanes import Table, group_rows, read_table
from flopwatch.output.plots.plot import Plot, Point, Reference, Series, Span, is_ratio, thin
from flopwatch.output.units import format_time
from flopwatch.records.record import Record

NAME = "samples"
WIDE = 4.0
"""Times that differ more than this go on a scale of ratios."""


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """One for every case, of rows that share a table."""
    sampled = [row for row in rows if len(row.record.rounds) > 1 and row.record.samples_ns]
    table = read_table(rows)
    for group in group_rows(sampled):
        drawn = [(row, points) for row in group if (points := _read_points(row, table))]
        if drawn:
            yield _make_plot(drawn, table)


def list_totals_ns(record: Record) -> list[float]:
    """Sum of the phases, sample by sample, warm-up included."""
    return [sum(phases) for phases in zip(*record.samples_ns.values(), strict=True)]


def _read_points(row: Row, table: Table) -> list[Point]:
    record = row.record
    return [
        Point(
            x=round_,
            y=total_ns,
            tip=f"{record.variant}, round {round_}: {format_time(total_ns)}"
            + (", warm-up" if place < record.warmup_samples else ""),
        )
        for place, (round_, total_ns) in enumerate(
            zip(record.rounds, list_totals_ns(record), strict=True)
        )
        if is_ratio(total_ns)
    ]


def _make_plot(drawn: Sequence[tuple[Row, list[Point]]], table: Table) -> Plot:
    times_ns = [point.y for _, points in drawn for point in points]
    rounds = [point.x for _, points in drawn for point in points]
    x = make_axis("round", [0, *rounds], COUNT)
    first, _ = drawn[0]
    series, references = [], []
    for position, (row, points) in enumerate(drawn):
        # Of the measured ones; where all are warm-up, of those.
        measured = [p.y for p in points[row.record.warmup_samples :]] or [p.y for p in points]
        middle = median(measured)
        start = points[min(row.record.warmup_samples, len(points) - 1)].x
        series.append(
            Series(
                name=row.record.variant,
                number=table.numbers[row.record.variant],
                points=thin(tuple(points)),
                is_small=True,
                end=middle,
            )
        )
        text = f"{row.record.variant}, median {format_time(middle)}"
        line = ((start, middle), (points[-1].x, middle))
        references.append(Reference(points=line, text=text, series=position))
    return Plot(
        name=NAME,
        title="Samples in the order of taking",
        subject=" ".join(filter(None, [table.subject, table.name_case(first)])),
        caption="A mark is the time of one run; the line is the median of those after warm-up.",
        conditions=table.conditions,
        x=x,
        y=make_axis("time of a run", times_ns, TIME, is_log=max(times_ns) > WIDE * min(times_ns)),
        series=tuple(series),
        names="ends",
        references=tuple(references),
        spans=_find_warmup(drawn),
    )


def _find_warmup(drawn: Sequence[tuple[Row, list[Point]]]) -> tuple[Span, ...]:
    """Up to the last round in which one was still warming up."""
    ends = [
        row.record.rounds[row.record.warmup_samples - 1]
        for row, _ in drawn
        if row.record.warmup_samples
    ]
    return (Span(start=0, end=max(ends) + 0.5, text="warm-up"),) if ends else ()
