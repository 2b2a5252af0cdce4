"""Memory: what was predicted, by part, beside what was measured, by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import BYTES, make_axis
from flopwatch.output.plots.lanes import Lanes, Table, divide_lanes, lay_lanes, read_table
from flopwatch.output.plots.plot import Bar, Plot, Point, Series, is_drawable
from flopwatch.output.training_tables import find_estimate_bytes, find_peak_bytes
from flopwatch.output.units import format_bytes
from flopwatch.records.record import Record

NAME = "memory"
BAR_PX = 18.0
MARK_PX = 8.0
PREDICTED = "Bars: what was predicted from dimensions alone, by part."
MEASURED = (
    "Marks: the most that each phase held, with what was there before the run, which other "
    "variants of the same process may hold."
)


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those whose memory was predicted or measured."""
    known = [row for row in rows if row.record.predicted_memory_bytes or _find_peaks(row.record)]
    if not known:
        return
    table = read_table(rows)
    for some in divide_lanes(known):
        yield _make_plot(some, table)


def is_telling(plot: Plot) -> bool:
    """Whether something was predicted; what was measured only is told by the table."""
    return any(one.bars for one in plot.series)


def _find_peaks(record: Record) -> dict[str, float]:
    """By phase, what was there before included."""
    resident_bytes = record.resident_bytes or 0
    return {phase: float(resident_bytes + held.peak_bytes) for phase, held in record.memory.items()}


def _make_plot(rows: Sequence[Row], table: Table) -> Plot:
    phases = list(dict.fromkeys(phase for row in rows for phase in row.record.memory))
    bar_px = BAR_PX if any(row.record.predicted_memory_bytes for row in rows) else 0.0
    # Below each bar, a small lane for every phase. The bar, or what stands in its place, is where a
    # lane's name is.
    lane_px = bar_px + 8 + MARK_PX * len(phases)
    drops = {
        phase: (bar_px / 2 + MARK_PX * (place + (0.6 if bar_px else 0))) / lane_px
        for place, phase in enumerate(phases)
    }
    up = (lane_px - bar_px - (6 if bar_px else 14)) / 2 / lane_px
    lanes = lay_lanes(rows, table, lane_px=lane_px)
    predicted, measured = _stack(lanes, table), _mark(lanes, table, drops)
    ends = [bar.end for one in predicted for bar in one.bars]
    peaks = [point.x for one in measured for point in one.points]
    captions = [*([PREDICTED] if predicted else []), *([MEASURED] if measured else [])]
    return Plot(
        name=NAME,
        title="Memory, predicted and measured" if predicted else "Memory, by phase",
        subject=table.subject,
        caption=" ".join(captions),
        conditions=table.conditions,
        x=make_axis("memory", [0.0, *ends, *peaks], BYTES),
        y=replace(lanes.y, low=lanes.y.low - up, high=lanes.y.high - up),
        series=(*predicted, *measured),
        names="top",
        lanes=lanes.count,
        lane_px=lane_px,
        bar_px=bar_px,
        headings=tuple(replace(one, y=one.y - up) for one in lanes.headings),
        notes=lanes.note(_note),
    )


def _stack(lanes: Lanes, table: Table) -> list[Series]:
    bars: dict[str, list[Bar]] = {}
    for y, row in lanes.rows:
        start = 0.0
        for part, size in row.record.predicted_memory_bytes.items():
            if not size or not is_drawable(start + size):
                continue
            tip = f"{table.tell(row)}: {part}, predicted {format_bytes(size)}"
            bar = Bar(y=y, start=start, end=start + size, tip=tip, text=part)
            bars.setdefault(part, []).append(bar)
            start += size
    return [
        Series(name=part, number=place % 5 + 1, shade=place // 5, bars=tuple(found))
        for place, (part, found) in enumerate(bars.items())
    ]


def _mark(lanes: Lanes, table: Table, drops: dict[str, float]) -> list[Series]:
    points: dict[str, list[Point]] = {}
    for y, row in lanes.rows:
        for phase, peak_bytes in _find_peaks(row.record).items():
            tip = f"{table.tell(row)}: {phase}, measured {format_bytes(peak_bytes)}"
            if is_drawable(peak_bytes):
                point = Point(x=peak_bytes, y=y - drops[phase], tip=tip)
                points.setdefault(phase, []).append(point)
    return [
        Series(name=f"{phase}, measured", number=0, marker=place, points=tuple(found))
        for place, (phase, found) in enumerate(points.items())
    ]


def _note(row: Row) -> str:
    """What was measured; where nothing was, what was predicted."""
    peak_bytes = find_peak_bytes(row.record)
    if peak_bytes is not None:
        return format_bytes(peak_bytes)
    size = find_estimate_bytes(row.record)
    return f"({format_bytes(size)})" if size is not None and is_drawable(size) else ""
