"""The roofline: how fast each case computes, below what memory and arithmetic allow.

A case whose FLOPs are few for its bytes cannot be faster than memory gives it bytes; one whose
FLOPs are many cannot be faster than the arithmetic. Both limits are those that `flopwatch peaks`
has measured on the machine before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.record_device import name_arithmetic, sum_flops
from flopwatch.analysis.summary import Row
from flopwatch.devices.measured_peaks import Peaks, from_environment
from flopwatch.output.plots.axes import COUNT, make_axis, rate
from flopwatch.output.plots.lanes import Table, read_table
from flopwatch.output.plots.plot import Plot, Point, Reference, Series, is_ratio, thin
from flopwatch.output.units import format_rate, three_figures
from flopwatch.records.record import Record

NAME = "roofline"
HEADROOM = 2
"""Above the highest roof, for its name; and below the slowest case, for its mark."""


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """One, of rows that share a table, and so a machine; none where the cases do not say their
    FLOPs and bytes, or no peaks were measured."""
    known = [row for row in rows if is_ratio(find_intensity(row.record), row.flops_per_s)]
    peaks = _find_peaks(known)
    if peaks is None:
        return
    bandwidth = max(
        (stream.bytes_per_s for stream in peaks.streams if is_ratio(stream.bytes_per_s)),
        default=None,
    )
    tops = _find_tops(known, peaks)
    if bandwidth is not None and tops:
        yield _make_plot(known, bandwidth, tops, read_table(rows))


def find_intensity(record: Record) -> float | None:
    """FLOPs for every byte that must be moved, of the phases that declare both."""
    both = [phase for phase in record.flops if phase in record.bytes and "/" not in phase]
    flops = sum(sum(record.flops[phase].values()) for phase in both)
    size_bytes = sum(record.bytes[phase] for phase in both)
    return flops / size_bytes if flops and size_bytes else None


def _find_peaks(rows: Sequence[Row]) -> Peaks | None:
    """The newest that one of the records has; all of a table are of one machine."""
    newest = max(rows, key=lambda row: row.record.measured_at, default=None)
    return None if newest is None else from_environment(newest.record.environment)


def _find_tops(rows: Sequence[Row], peaks: Peaks) -> dict[str, float]:
    """By dtype, of those that the cases compute in."""
    dtypes = dict.fromkeys(
        name_arithmetic(row.record, dtype) for row in rows for dtype in sum_flops(row.record.flops)
    )
    found = {dtype: peaks.find_peak(dtype) for dtype in dtypes}
    return {
        dtype: peak.flops_per_s
        for dtype, peak in found.items()
        if peak is not None and is_ratio(peak.flops_per_s)
    }


def _make_plot(rows: Sequence[Row], bandwidth: float, tops: dict[str, float], table: Table) -> Plot:
    by_variant: dict[str, list[Point]] = {}
    for row in rows:
        point = _make_point(row, bandwidth, tops, table)
        by_variant.setdefault(row.record.variant, []).append(point)
    points = [point for many in by_variant.values() for point in many]
    highest = max(tops.values())
    ridges = [top / bandwidth for top in tops.values()]
    x = make_axis(
        "FLOPs for each byte",
        [v for place in (*(p.x for p in points), *ridges) for v in (place / 2, place * 2)],
        COUNT,
        is_log=True,
    )
    lowest = min(*(point.y / HEADROOM for point in points), x.low * bandwidth)
    y = make_axis("speed", [lowest, HEADROOM * highest], rate("FLOP/s"), is_log=True)
    slope_end = min(x.high, highest / bandwidth)
    slope = ((max(x.low, y.low / bandwidth), max(y.low, x.low * bandwidth)),
             (slope_end, slope_end * bandwidth))  # fmt: skip
    memory = Reference(
        points=slope, text=f"memory, {format_rate(bandwidth, 'B/s')}", text_at="start"
    )
    flat = [
        Reference(
            points=((min(x.high, top / bandwidth), top), (x.high, top)),
            text=f"{dtype}, {format_rate(top, 'FLOP/s')}",
        )
        for dtype, top in tops.items()
    ]
    return Plot(
        name=NAME,
        title="Roofline: speed below what memory and arithmetic allow",
        subject=table.subject,
        caption=(
            "Dashed: the fastest matmuls and passes over memory that flopwatch peaks has measured "
            "on this machine; FLOPs and bytes are those that the suite declares."
        ),
        conditions=table.conditions,
        x=x,
        y=y,
        series=tuple(
            Series(name=variant, number=table.numbers[variant], points=thin(tuple(many)))
            for variant, many in by_variant.items()
        ),
        names="top",
        references=(memory, *flat),
    )


def _make_point(row: Row, bandwidth: float, tops: dict[str, float], table: Table) -> Point:
    intensity, speed = find_intensity(row.record), row.flops_per_s
    assert intensity is not None
    assert speed is not None
    own = [tops[d] for d in sum_flops(row.record.flops) if d in tops]
    roof = min(intensity * bandwidth, *own, max(tops.values()))
    return Point(
        x=intensity,
        y=speed,
        tip=(
            f"{table.tell(row)}: {format_rate(speed, 'FLOP/s')} at {three_figures(intensity)} "
            f"FLOPs a byte, {100 * speed / roof:.0f} % of what its roof allows"
        ),
        is_hollow=bool(row.differences),
    )
