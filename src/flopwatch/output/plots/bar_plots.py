"""Stacked bars: the phases and regions of a run, its breakdown, and memory by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flopwatch.analysis.step_breakdown import (
    FASTER,
    REST,
    BreakdownRow,
    StepBreakdown,
    make_breakdown,
)
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.channels import (
    BYTES,
    PICKED,
    SHORT,
    TIP,
    Axis,
    lay_above,
    layer,
    make_axis,
    pick_by_legend,
    text,
)
from flopwatch.output.plots.lanes import Lanes, divide_lanes, lay_lanes, read_table
from flopwatch.output.plots.plot import Layer, Plot, Values, is_drawable
from flopwatch.output.plots.theme import (
    COLOURS,
    INKS,
    SMALL_PX,
    choose_colour,
    choose_shade,
    choose_shape,
)
from flopwatch.output.training_tables import find_estimate_bytes, find_peak_bytes
from flopwatch.output.units import format_bytes, format_measured_time, format_time, printable
from flopwatch.records.record import Record

LANE_PX = 24.0
BAR_PX = 18.0
ROOM_PX = 400.0
"""What the longest bar has at least, in a file or on a wide page: words that do not fit into their
bar then are left out."""

SHARE = Axis(title="share of a run", label="format(datum.value, '.0%')", begins_at_zero=True)
"""Bars of runs are equally long: a case that takes a thousand times as long as others would be all
there is to see. Their times stand at the right."""

Styles = Mapping[str, tuple[int, int]]
"""By part: its colour, and its shade of it."""


def stack_bars(
    bars: Values, styles: Styles, x: Layer, lanes: Lanes, reach: float = 0.0, **mark: Any
) -> list[Layer]:
    """Bars with their words inside, where there is room; `reach` is what else the axis reaches."""
    ends = [end for bar in bars for end in (bar["start"], bar["end"])]
    longest = max([*ends, reach]) - min([*ends, 0.0]) or 1.0
    for bar in bars:
        bar["middle"] = (bar["start"] + bar["end"]) / 2
        room_px = (bar["end"] - bar["start"]) / longest * ROOM_PX
        bar["text"] = bar["text"] if SMALL_PX * 0.62 * (1 + len(bar["text"])) < room_px else ""
    found = {bar["part"] for bar in bars}
    shown = {part: style for part, style in styles.items() if part in found}
    legend = {"title": None, "labelExpr": SHORT, "symbolType": "square", **lay_above(shown)}
    domain = {"field": "part", "type": "nominal", "legend": legend}
    fills = [choose_shade(*style) for style in shown.values()]
    strokes = [choose_colour(number) for number, _ in shown.values()]
    xy = {"x": {**x, "field": "start"}, "x2": {"field": "end"}, "y": lanes.channel()}
    fill = {**domain, "scale": {"domain": list(shown), "range": fills}}
    stroke = {**domain, "scale": {"domain": list(shown), "range": strokes}}
    opacity = {"opacity": PICKED}
    middle = {"x": {**x, "field": "middle"}, "y": lanes.channel(), **opacity}
    bar = {"type": "bar", "orient": "horizontal", "size": BAR_PX, "strokeWidth": 1, **mark}
    colours = {"fill": fill, "stroke": stroke, **opacity}
    return [
        layer("bars", bar, {**xy, **colours, **TIP}, params=[pick_by_legend("part")]),
        text("bars", middle, style="inside", **mark),
    ]


# Phases and regions


def make_parts(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those that have several phases, or regions."""
    divided = [row for row in rows if len(split(row)) > 1]
    table = read_table(rows) if divided else None
    for some in divide_lanes(divided):
        assert table is not None
        lanes = lay_lanes(some, table, LANE_PX)
        bars: Values = []
        for y, row in lanes.rows:
            start_ns, times_ns = 0.0, split(row)
            total_ns = sum(times_ns.values()) or 1.0
            for (phase, region), time_ns in times_ns.items():
                share = f"{100 * time_ns / total_ns:.1f} %"
                part = name_part(phase, region)
                bars.append(
                    {
                        "y": y,
                        "start": SHARE.scale(start_ns / total_ns),
                        "end": SHARE.scale((start_ns + time_ns) / total_ns),
                        "part": part,
                        "text": printable(region or phase),
                        "tip": table.tip(row, f"{part}: {format_time(time_ns)}, {share}"),
                    }
                )
                start_ns += time_ns
        yield lanes.make_plot(
            name="parts",
            title="Where the time of a run goes",
            caption=(
                "The phases of a run by their shares, with instruments the regions in them, too. "
                f"On the right, the {table.middle} time of whole runs."
            ),
            note=lambda row: format_measured_time(row.total_ns),
            data={"bars": bars},
            layers=stack_bars(bars, _style_parts(some), SHARE.channel(), lanes),
            # Of two, the table says as much.
            is_informative=len({bar["part"] for bar in bars}) > 2,
        )


def split(row: Row) -> dict[tuple[str, str], float]:
    """Nanoseconds by phase and region, in order; what is left of a phase that has regions is its
    rest. Regions are timed in runs with instruments: their shares are taken, of the plain run. The
    sum is the median of whole runs, which that of the phases' medians is not."""
    if row.total_ns is None:
        return {}
    scale = row.total_ns.value / (sum(one.value for one in row.phases_ns.values()) or 1.0)
    parts: dict[tuple[str, str], float] = {}
    for phase, estimate in row.phases_ns.items():
        inside = {
            name.removeprefix(f"{phase}/"): region.share.value * row.total_ns.value
            for name, region in row.regions.items()
            if name.startswith(f"{phase}/")
        }
        phase_ns = estimate.value * scale
        # Regions that come out longer than their phase are shortened to it.
        excess = max(1.0, sum(inside.values()) / phase_ns) if phase_ns else 1.0
        for region, time_ns in inside.items():
            parts[phase, region] = time_ns / excess
        rest_ns = max(0.0, phase_ns - sum(inside.values()) / excess)
        parts[phase, REST if inside else ""] = rest_ns
    return {part: time_ns for part, time_ns in parts.items() if is_drawable(time_ns)}


def name_part(phase: str, region: str) -> str:
    return printable(f"{phase}, {region}" if region else phase)


def _style_parts(rows: Sequence[Row]) -> Styles:
    """A colour for every phase, a shade for every region of it."""
    regions: dict[str, dict[str, None]] = {}
    for row in rows:
        for phase, region in split(row):
            regions.setdefault(phase, {})[region] = None
    styles: dict[str, tuple[int, int]] = {}
    for number, (phase, names) in enumerate(regions.items()):
        # A phase as a whole comes first, and what is left of one last.
        ordered = sorted(names, key=lambda name: (name != "", name == REST))
        for shade, region in enumerate(ordered):
            styles[name_part(phase, region)] = (number % COLOURS + 1, shade + number // COLOURS)
    return styles


# The breakdown

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
    "bubble": (5, 2),
    "transfer": (5, 0),
    "gaps": (0, 0),
    REST: (0, 3),
    FASTER: (0, 1),
}
"""Colour and shade of each row: what belongs together has one colour."""
VISIBLE = 0.01
"""Of a run: for less than that, there is no room left of 0."""
SHORT_NAMES = {"elements": "element-wise", "logits": "loss", "gaps": "launches"}
SHORT_NAMES |= {key: key for key in ("matmuls", "shape", "dtype", "memory", "traffic", "waiting")}
SHORT_NAMES |= {"transfer": "transfer", "bubble": "bubble"}
"""Of names that a bar would have no room for."""


def make_breakdowns(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those whose FLOPs or bytes are compared with known limits."""
    # What others have published has its dimensions instead.
    counted = [
        row
        for row in rows
        if row.total_ns is not None and (row.record.flops or row.record.bytes or row.record.job)
    ]
    for some in divide_lanes(counted):
        found = {id(row): make_breakdown(row.record) for row in some}
        known = {
            key: one
            for key, one in found.items()
            if one is not None
            and one.is_explained
            and is_drawable(*(each.time_ns for each in one.rows))
        }
        shown = [row for row in some if id(row) in known]
        if shown:
            yield _draw_breakdowns(shown, known, rows)


def _draw_breakdowns(
    shown: Sequence[Row], breakdowns: Mapping[int, StepBreakdown], rows: Sequence[Row]
) -> Plot:
    table = read_table(rows)
    lanes = lay_lanes(shown, table, LANE_PX)
    bars: Values = []
    names: dict[str, str] = {}
    for y, row in lanes.rows:
        breakdown = breakdowns[id(row)]
        for each, start, end in _stack(breakdown):
            key = FASTER if end <= 0 and each.key == REST else each.key
            names.setdefault(key, each.name)
            sign = "−" if each.time_ns < 0 else ""
            share = f"{100 * each.time_ns / breakdown.total_ns:.1f} %"
            told = f"{each.name}: {sign}{format_time(abs(each.time_ns))}, {share}"
            bars.append(
                {
                    "y": y,
                    "start": SHARE.scale(start),
                    "end": SHARE.scale(end),
                    "part": names[key],
                    "text": SHORT_NAMES.get(each.key, each.name),
                    "tip": table.tip(row, told, each.basis),
                }
            )
    styles = {names[key]: style for key, style in STYLES.items() if key in names}
    return lanes.make_plot(
        name="breakdown",
        title="Where the time goes, compared with what the hardware allows",
        caption=(
            "Shares of a run: matmuls and memory at the rates of the hardware, what is lost, and "
            f"what was measured. On the right, the {table.middle} time of whole runs; where parts "
            "come to more than that, the difference lies left of 0."
        ),
        note=lambda row: format_time(breakdowns[id(row)].total_ns),
        data={"bars": bars},
        layers=stack_bars(bars, styles, SHARE.channel(), lanes),
        is_informative=len(styles) > 2,  # the table has a single share of the peak
    )


def _stack(breakdown: StepBreakdown) -> Iterator[tuple[BreakdownRow, float, float]]:
    """As shares, from 0 to the right; what is less than nothing lies left of it."""
    start = 0.0
    for row in breakdown.rows:
        share = row.time_ns / breakdown.total_ns
        if share > 0:
            yield row, start, start + share
            start += share
        elif share < -VISIBLE:
            yield row, share, 0.0


# Memory


def make_memory(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those whose memory was predicted or measured."""
    known = [row for row in rows if row.record.predicted_memory_bytes or _find_peaks(row.record)]
    for some in divide_lanes(known):
        yield _draw_memory(some, rows)


def _find_peaks(record: Record) -> dict[str, float]:
    """By phase, what was there before included."""
    resident_bytes = record.resident_bytes or 0
    peaks = {phase: float(resident_bytes + m.peak_bytes) for phase, m in record.memory.items()}
    return {phase: peak for phase, peak in peaks.items() if is_drawable(peak)}


def _draw_memory(some: Sequence[Row], rows: Sequence[Row]) -> Plot:
    table = read_table(rows)
    has_bars = any(row.record.predicted_memory_bytes for row in some)
    lanes = lay_lanes(some, table, 40 if has_bars else 22)
    sizes = [size for row in some for size in _find_peaks(row.record).values()]
    sizes += [sum(filter(is_drawable, row.record.predicted_memory_bytes.values())) for row in some]
    axis = make_axis("memory", sizes, BYTES, from_zero=True)
    bars: Values = []
    points: Values = []
    for y, row in lanes.rows:
        start = 0.0
        for part, size in row.record.predicted_memory_bytes.items():
            if not size or not is_drawable(start + size):
                continue
            bars.append(
                {
                    "y": y,
                    "start": axis.scale(start),
                    "end": axis.scale(start + size),
                    "part": printable(part),
                    "text": printable(part),
                    "tip": table.tip(row, f"{part}, predicted: {format_bytes(size)}"),
                }
            )
            start += size
        for phase, peak in _find_peaks(row.record).items():
            told = table.tip(row, f"{phase}, measured: {format_bytes(peak)}")
            points.append({"x": axis.scale(peak), "y": y, "phase": printable(phase), "tip": told})
    parts = dict.fromkeys(bar["part"] for bar in bars)
    styles = {part: (n % COLOURS + 1, n // COLOURS) for n, part in enumerate(parts)}
    predicted = "Bars: predicted from dimensions alone, by part." if bars else ""
    measured = (
        "Marks: the most that each phase held, with what was there before the run, which other "
        "variants of the same process may hold."
    )
    x = axis.channel()
    reach = max((point["x"] for point in points), default=0.0)
    layers = stack_bars(bars, styles, x, lanes, reach, yOffset=-7) if bars else []
    layers += [_mark_phases(points, x, lanes, 9 if bars else 0)] if points else []
    return lanes.make_plot(
        name="memory",
        title="Memory, predicted and measured" if bars else "Memory, by phase",
        caption=" ".join(filter(None, [predicted, measured if points else ""])),
        note=_note_memory,
        data={"bars": bars, "points": points},
        layers=layers,
        with_guides=not bars,
        is_informative=bool(bars),  # the table has what was measured only
    )


def _mark_phases(points: Values, x: Layer, lanes: Lanes, offset_px: float) -> Layer:
    phases = list(dict.fromkeys(point["phase"] for point in points))
    shape = {
        "field": "phase",
        "type": "nominal",
        "scale": {"domain": phases, "range": [choose_shape(n) for n in range(len(phases))]},
        "legend": {
            "title": "measured:",
            "titleOrient": "left",
            "labelExpr": SHORT,
            **lay_above(phases),
        },
    }
    mark = {
        "type": "point", "size": 55, "strokeWidth": 1.5, "color": INKS.text, "opacity": 1,
        "yOffset": offset_px,
    }  # fmt: skip
    return layer("points", mark, {"x": x, "y": lanes.channel(), "shape": shape, **TIP})


def _note_memory(row: Row) -> str:
    """What was measured; where nothing was, what was predicted."""
    peak_bytes = find_peak_bytes(row.record)
    if peak_bytes is not None:
        return format_bytes(peak_bytes)
    size = find_estimate_bytes(row.record)
    return f"({format_bytes(size)})" if size is not None and is_drawable(size) else ""
