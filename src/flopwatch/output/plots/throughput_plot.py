"""Tokens a second, and the share of the peak that they are, over size and context.

Throughput over ranks, beside what it would be if every rank added as much as the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import SHARE, make_axis, rate
from flopwatch.output.plots.curves import (
    RANKS,
    Quantity,
    divide_lines,
    draw_lines,
    is_axis_of_counts,
    is_known,
    make_curves,
    over_axis,
)
from flopwatch.output.plots.lanes import read_table
from flopwatch.output.plots.plot import Plot, Reference, Series
from flopwatch.output.units import format_rate

THROUGHPUT = "throughput"
MFU = "mfu"
EXACT = "MFU"
PEAKS = {"nominal": "Share of the peak", "measured": "Share of the measured peak"}


def find_throughput(row: Row) -> Estimate | None:
    """With the interval of the time that it comes from."""
    return None if row.tokens_per_s is None else _scale(row, row.tokens_per_s)


def make_throughput(rows: Sequence[Row]) -> Iterator[Plot]:
    yield from make_curves(
        rows,
        Quantity(
            name=THROUGHPUT,
            title="Throughput",
            label="throughput",
            unit=rate("tokens/s"),
            caption="Tokens of a step, of all ranks, over its median time.",
            find=find_throughput,
            show=lambda value: format_rate(value, "tokens/s"),
        ),
    )


def make_mfu(rows: Sequence[Row]) -> Iterator[Plot]:
    """MFU where there are training jobs; for others, what part of the peak their FLOPs reach."""
    name = _choose_share(rows)
    if name is None:
        return
    caption = {
        EXACT: "Model FLOPs over the peak, by the convention exact.",
        PEAKS["nominal"]: "FLOPs as the suite declares them, over the device's nominal peak.",
        PEAKS["measured"]: "FLOPs as the suite declares them, over the peak measured here.",
    }[name]
    yield from make_curves(
        rows,
        Quantity(
            name=MFU,
            title=name,
            label=name[0].lower() + name[1:] if name != EXACT else name,
            unit=SHARE,
            caption=caption,
            find=lambda row: _find_share(row, name),
            show=lambda value: f"{100 * value:.1f} %",
        ),
    )


def _choose_share(rows: Sequence[Row]) -> str | None:
    """The first that any row has."""
    names = (EXACT, *PEAKS.values())
    return next((n for n in names if any(_find_share(row, n) is not None for row in rows)), None)


def _find_share(row: Row, name: str) -> Estimate | None:
    if name == EXACT:
        share = None if row.utilisation is None else row.utilisation.mfu
    else:
        found = [share for standard, share in row.of_peak.items() if PEAKS[standard] == name]
        share = found[0].share if found else None
    return None if share is None else _scale(row, share)


def _scale(row: Row, value: float) -> Estimate:
    """A rate, with the interval of the time that it comes from."""
    total_ns = row.total_ns
    assert total_ns is not None
    low, high = total_ns.high, total_ns.low
    return Estimate(
        value=value,
        low=value * total_ns.value / low if low else None,
        high=value * total_ns.value / high if high else None,
        samples=total_ns.samples,
    )


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


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those that were measured on several numbers of ranks."""
    known = [row for row in rows if RANKS in row.record.params and is_known(find_throughput(row))]
    if not is_axis_of_counts(known, RANKS):
        return
    table = read_table(rows)
    over = over_axis(RANKS)
    for lines in divide_lines(known, over, QUANTITY, table):
        yield _add_ideal(draw_lines(lines, over, QUANTITY, table))


def _add_ideal(plot: Plot) -> Plot:
    series = tuple(_tell_efficiency(one) for one in plot.series)
    ideal = max(series, key=lambda one: one.points[0].y / one.points[0].x)
    per_rank = ideal.points[0].y / ideal.points[0].x
    last = max(point.x for one in series for point in one.points)
    line = ((ideal.points[0].x, ideal.points[0].y), (last, per_rank * last))
    values = [v for one in series for p in one.points for v in (p.y, p.low, p.high) if v]
    return replace(
        plot,
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
