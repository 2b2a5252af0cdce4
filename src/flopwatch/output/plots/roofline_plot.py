"""The roofline: how fast each case computes, below what memory and arithmetic allow.

A case whose FLOPs are few for its bytes cannot be faster than memory gives it bytes; one whose
FLOPs are many cannot be faster than the arithmetic. Both limits are those that `flopwatch peaks`
has measured on the machine before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwatch.analysis.record_device import name_arithmetic, sum_flops
from flopwatch.analysis.summary import Row
from flopwatch.devices.measured_peaks import Peaks, from_environment
from flopwatch.output.columns import NOT_COMPARABLE
from flopwatch.output.plots.channels import (
    PICKED,
    draw_points,
    lay_above,
    make_log_axis,
    pick_by_legend,
    rule,
    series_channels,
    text,
)
from flopwatch.output.plots.lanes import Table, read_table
from flopwatch.output.plots.plot import Plot, Values, is_ratio, thin
from flopwatch.output.units import format_rate, printable, three_figures
from flopwatch.records.record import Record

AROUND = 2.0
"""How far the axes go beyond the cases, and beyond the ridge of the roof."""


def make_rooflines(rows: Sequence[Row]) -> Iterator[Plot]:
    """One, of rows that share a table, and so a machine; none where the cases do not say their
    FLOPs and bytes, or no peaks were measured."""
    known = [row for row in rows if is_ratio(find_intensity(row.record), row.flops_per_s)]
    newest = max(known, key=lambda row: row.record.measured_at, default=None)
    peaks = None if newest is None else from_environment(newest.record.environment)
    if peaks is None:
        return
    rates = [s.bytes_per_s for s in peaks.streams if is_ratio(s.bytes_per_s)]
    tops = _find_tops(known, peaks)
    if rates and tops:
        yield _draw_roofline(known, max(rates), tops, read_table(rows))


def find_intensity(record: Record) -> float | None:
    """FLOPs for every byte that must be moved, of the phases that declare both."""
    both = [phase for phase in record.flops if phase in record.bytes and "/" not in phase]
    flops = sum(sum(record.flops[phase].values()) for phase in both)
    size_bytes = sum(record.bytes[phase] for phase in both)
    return flops / size_bytes if flops and size_bytes else None


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


def _draw_roofline(
    rows: Sequence[Row], bandwidth: float, tops: dict[str, float], table: Table
) -> Plot:
    by_variant: dict[str, Values] = {}
    for row in rows:
        point = _make_point(row, bandwidth, tops, table)
        by_variant.setdefault(point["series"], []).append(point)
    points = [point for many in by_variant.values() for point in thin(many)]
    highest = max(tops.values())
    places = [*(point["x"] for point in points), *(top / bandwidth for top in tops.values())]
    left, right = min(places) / AROUND, max(places) * AROUND
    memory = f"memory, {format_rate(bandwidth, 'B/s')}"
    roofs: Values = [
        {"x": left, "y": left * bandwidth, "x2": highest / bandwidth, "y2": highest,
         "text": memory, "is_memory": True},
        *(
            {"x": top / bandwidth, "y": top, "x2": right, "y2": top, "is_memory": False,
             "text": printable(f"{dtype}, {format_rate(top, 'FLOP/s')}")}
            for dtype, top in tops.items()
        ),
    ]  # fmt: skip
    x = make_log_axis("FLOPs for each byte", [left, right])
    speeds = [point["y"] for point in points] + [roof["y"] for roof in roofs]
    y = make_log_axis("speed, FLOP/s", speeds)
    numbers = {printable(row.record.variant): table.numbers[row.record.variant] for row in rows}
    looks = series_channels(numbers, **lay_above(numbers))
    xy = {"x": x.channel(), "y": y.channel("y")}
    far = {"x": {**xy["x"], "field": "x2"}, "y": xy["y"]}
    picked = {**xy, "opacity": PICKED}
    return table.make_plot(
        name="roofline",
        title="Roofline: speed below what memory and arithmetic allow",
        caption=(
            "Dashed: the fastest matmuls and passes over memory that flopwatch peaks has measured "
            "on this machine; FLOPs and bytes are those that the suite declares."
        ),
        data={"points": points, "roofs": roofs},
        layers=[
            rule("roofs", **xy, x2={"field": "x2"}, y2={"field": "y2"}),
            text("roofs", far, where="!datum.is_memory", style="note", align="right", dy=-8),
            text("roofs", xy, where="datum.is_memory", style="note", align="left", dx=14),
            draw_points(
                picked, looks, where_certain="datum.is_comparable", params=[pick_by_legend()]
            ),
        ],
        height=320,
    )


def _make_point(row: Row, bandwidth: float, tops: dict[str, float], table: Table) -> dict[str, Any]:
    intensity, speed = find_intensity(row.record), row.flops_per_s
    assert intensity is not None
    assert speed is not None
    own = [tops[dtype] for dtype in sum_flops(row.record.flops) if dtype in tops]
    roof = min(intensity * bandwidth, *own, max(tops.values()))
    return {
        "x": intensity,
        "y": speed,
        "series": printable(row.record.variant),
        "is_comparable": not row.differences,
        "tip": table.tip(
            row,
            f"{format_rate(speed, 'FLOP/s')} at {three_figures(intensity)} FLOPs a byte",
            f"{100 * speed / roof:.0f} % of what its roof allows",
            *([NOT_COMPARABLE] if row.differences else []),
        ),
    }
