"""The roofline: how fast each case computes, below what memory and arithmetic allow.

A case whose FLOPs are few for its bytes cannot be faster than memory gives it bytes; one whose
FLOPs are many cannot be faster than the arithmetic. The limits are those that `flopwatch peaks` has
measured on the machine before the run, else those of its data sheet. Cases that declare bytes and
no FLOPs are shown below the memory's limit alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwatch.analysis.hardware_limits import Limits, count_bytes, find_limits
from flopwatch.analysis.record_device import name_arithmetic, sum_flops
from flopwatch.analysis.summary import Row
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
from flopwatch.output.units import format_bytes, format_rate, printable, three_figures
from flopwatch.records.record import Record

AROUND = 2.0
"""How far the axes go beyond the cases, and beyond the ridge of the roof."""
LIMITS = "Dashed: the limits of memory and arithmetic, "


def make_rooflines(rows: Sequence[Row]) -> Iterator[Plot]:
    """One, of rows that share a table, and so a machine; none where neither FLOPs nor bytes are
    known, or no limits are."""
    known = [row for row in rows if is_ratio(find_intensity(row.record), row.flops_per_s)]
    moving = [row for row in rows if is_ratio(row.bytes_per_s)]
    newest = max(known or moving, key=lambda row: row.record.measured_at, default=None)
    limits = None if newest is None else find_limits(newest.record)
    if limits is None or limits.bandwidth is None or not is_ratio(limits.bandwidth.bytes_per_s):
        return
    bandwidth, source = limits.bandwidth.bytes_per_s, limits.bandwidth.source
    tops = _find_tops(known, limits)
    if tops:
        yield _draw_roofline(known, bandwidth, tops, read_table(rows), source)
    elif moving and not known:
        yield _draw_bandwidth(moving, bandwidth, read_table(rows), source)


def find_intensity(record: Record) -> float | None:
    """FLOPs for every byte that must be moved, of the phases of which both are known."""
    sizes = count_bytes(record) if record.flops else {}
    both = [phase for phase in record.flops if phase in sizes and "/" not in phase]
    flops = sum(sum(record.flops[phase].values()) for phase in both)
    size_bytes = sum(sizes[phase] for phase in both)
    return flops / size_bytes if flops and size_bytes else None


def _find_tops(rows: Sequence[Row], limits: Limits) -> dict[str, float]:
    """By dtype, of those that the cases compute in."""
    dtypes = dict.fromkeys(
        name_arithmetic(row.record, dtype) for row in rows for dtype in sum_flops(row.record.flops)
    )
    found = {dtype: limits.peaks[dtype] for dtype in dtypes if dtype in limits.peaks}
    return {dtype: peak.flops_per_s for dtype, peak in found.items() if is_ratio(peak.flops_per_s)}


def _draw_roofline(
    rows: Sequence[Row], bandwidth: float, tops: dict[str, float], table: Table, source: str
) -> Plot:
    points = [_make_point(row, bandwidth, tops, table) for row in rows]
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
    return _draw(
        rows,
        points,
        roofs,
        table,
        titles=("FLOPs for each byte", "speed, FLOP/s"),
        title="Roofline: speed below what memory and arithmetic allow",
        caption=f"{LIMITS}{source}. FLOPs and bytes are counted, not measured.",
    )


def _draw_bandwidth(rows: Sequence[Row], bandwidth: float, table: Table, source: str) -> Plot:
    """Of cases that only move bytes."""
    points = []
    for row in rows:
        size, speed = sum(row.record.bytes.values()), row.bytes_per_s or 0.0
        told = f"{format_rate(speed, 'B/s')} of {format_bytes(size)}"
        share = f"{100 * speed / bandwidth:.0f} % of the memory's rate"
        points.append({"x": size, "y": speed, **_name_point(row, table, told, share)})
    sizes = [point["x"] for point in points]
    roof = {"x": min(sizes) / AROUND, "x2": max(sizes) * AROUND, "y": bandwidth, "y2": bandwidth,
            "text": f"memory, {format_rate(bandwidth, 'B/s')}", "is_memory": False}  # fmt: skip
    return _draw(
        rows,
        points,
        [roof],
        table,
        titles=("bytes that a run moves", "bandwidth, B/s"),
        title="Roofline: bandwidth below what memory allows",
        caption=(
            f"Dashed: the memory's limit, {source}; above it, caches help. Bytes are those that "
            "the suite declares."
        ),
    )


def _draw(
    rows: Sequence[Row], points: Values, roofs: Values, table: Table, titles: tuple[str, str],
    **words: str,
) -> Plot:  # fmt: skip
    by_variant: dict[str, Values] = {}
    for point in points:
        by_variant.setdefault(point["series"], []).append(point)
    places, speeds = ([v for roof in roofs for v in (roof[a], roof[f"{a}2"])] for a in "xy")
    x = make_log_axis(titles[0], places)
    y = make_log_axis(titles[1], [*speeds, *(point["y"] for point in points)])
    numbers = {printable(row.record.variant): table.numbers[row.record.variant] for row in rows}
    looks = series_channels(numbers, **lay_above(numbers))
    xy = {"x": x.channel(), "y": y.channel("y")}
    far = {"x": {**xy["x"], "field": "x2"}, "y": xy["y"]}
    picked = {**xy, "opacity": PICKED}
    shown = [point for many in by_variant.values() for point in thin(many)]
    return table.make_plot(
        name="roofline",
        **words,
        data={"points": shown, "roofs": roofs},
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


def _name_point(row: Row, table: Table, *lines: str) -> dict[str, Any]:
    fairness = [NOT_COMPARABLE] if row.differences else []
    return {
        "series": printable(row.record.variant),
        "is_comparable": not row.differences,
        "tip": table.tip(row, *lines, *fairness),
    }


def _make_point(row: Row, bandwidth: float, tops: dict[str, float], table: Table) -> dict[str, Any]:
    intensity, speed = find_intensity(row.record), row.flops_per_s
    assert intensity is not None
    assert speed is not None
    dtypes = [name_arithmetic(row.record, dtype) for dtype in sum_flops(row.record.flops)]
    own = [tops[dtype] for dtype in dtypes if dtype in tops]
    roof = min(intensity * bandwidth, *own, max(tops.values()))
    return {
        "x": intensity,
        "y": speed,
        **_name_point(
            row,
            table,
            f"{format_rate(speed, 'FLOP/s')} at {three_figures(intensity)} FLOPs a byte",
            f"{100 * speed / roof:.0f} % of what its roof allows",
        ),
    }
