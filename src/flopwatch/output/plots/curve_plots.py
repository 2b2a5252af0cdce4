"""Throughput and MFU over size, sequence length or ranks: lines, one for each variant and set of
other parameters; where there is no axis of numbers, lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.channels import (
    HAS_INTERVAL,
    PICKED,
    RIGHT,
    SI,
    Axis,
    draw_points,
    layer,
    make_count_axis,
    make_log_axis,
    order_by_end,
    pick_by_legend,
    rule,
    series_channels,
    text,
)
from flopwatch.output.plots.lanes import Table, divide_lanes, lay_lanes, read_table
from flopwatch.output.plots.plot import Layer, Plot, Values, is_ratio, join, thin
from flopwatch.output.units import format_count, format_rate, format_share, printable
from flopwatch.suites.case import format_value

MOST_LINES = 8
"""In one plot; with more, every set of other parameters has its own."""
SIZE = "parameters"
RANKS = "ranks"
TUNABLE = ("micro_batch", "grad_accum", "global_batch")
"""What is chosen for the sake of speed: of several, the best is drawn."""
NOT_A_SIZE = (RANKS, *TUNABLE)
"""What lies over ranks is a plot of its own, with an ideal line."""
WIDE = 10.0
"""Rates that differ more than this go on a logarithmic scale."""
MFU = "MFU"
PEAKS = {"nominal": "Share of the peak", "measured": "Share of the measured peak"}

Lines = dict[tuple[str, str], list[Row]]
"""By variant and other parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """What is drawn."""

    name: str
    """The kind of plot."""
    title: str
    axis_title: str
    caption: str
    find: Callable[[Row], Estimate | None]
    show: Callable[[float], str]
    label: str = SI

    def find_value(self, row: Row) -> float:
        estimate = self.find(row)
        return 0.0 if estimate is None or not is_ratio(estimate.value) else estimate.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Over:
    """What it is drawn over."""

    label: str
    axis: str
    """The parameter that differs along a line."""
    find: Callable[[Row], float]


def _scale_total(row: Row, value: float | None) -> Estimate | None:
    """A rate, with the interval of the time that it comes from."""
    total_ns = row.total_ns
    if value is None or total_ns is None:
        return None
    low, high = total_ns.high, total_ns.low
    return Estimate(
        value=value,
        low=value * total_ns.value / low if low else None,
        high=value * total_ns.value / high if high else None,
        samples=total_ns.samples,
    )


def _find_share(row: Row, name: str) -> Estimate | None:
    if name == MFU:
        return _scale_total(row, None if row.utilisation is None else row.utilisation.mfu)
    shares = [one.share for standard, one in row.of_peak.items() if PEAKS[standard] == name]
    return _scale_total(row, shares[0] if shares else None)


THROUGHPUT = Quantity(
    name="throughput",
    title="Throughput",
    axis_title="throughput, tokens/s",
    caption="Tokens of a step, of all ranks, over its median time.",
    find=lambda row: _scale_total(row, row.tokens_per_s),
    show=lambda value: format_rate(value, "tokens/s"),
)
SCALING = Quantity(
    name="scaling",
    title="Throughput",
    axis_title="throughput, tokens/s",
    caption=(
        "Tokens a second of all ranks together. Dashed: what the job with the fewest ranks would "
        "give if every rank added as much."
    ),
    find=THROUGHPUT.find,
    show=THROUGHPUT.show,
)
SHARE_CAPTIONS = {
    MFU: "Model FLOPs over the peak, by the convention exact.",
    PEAKS["nominal"]: "FLOPs as the suite declares them, over the device's nominal peak.",
    PEAKS["measured"]: "FLOPs as the suite declares them, over the peak measured here.",
}


def make_throughput(rows: Sequence[Row]) -> Iterator[Plot]:
    yield from _make_curves(rows, THROUGHPUT)


def make_mfu(rows: Sequence[Row]) -> Iterator[Plot]:
    """MFU where there are training jobs; for others, what part of the peak their FLOPs reach."""
    names = [name for name in SHARE_CAPTIONS if any(_find_share(row, name) for row in rows)]
    if not names:
        return
    name = names[0]
    yield from _make_curves(
        rows,
        Quantity(
            name="mfu",
            title=name,
            axis_title=name if name == MFU else name.lower(),
            caption=SHARE_CAPTIONS[name],
            find=lambda row: _find_share(row, name),
            show=format_share,
            label="format(datum.value, '~%')",
        ),
    )


def make_scaling(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those that were measured on several numbers of ranks."""
    known = [r for r in rows if RANKS in r.record.params and SCALING.find_value(r)]
    if _is_axis_of_counts(known, RANKS):
        table = read_table(rows)
        for lines in _divide_lines(known, _over_axis(RANKS), SCALING, table):
            yield _draw_lines(lines, _over_axis(RANKS), SCALING, table)


def _make_curves(rows: Sequence[Row], quantity: Quantity) -> Iterator[Plot]:
    """Of rows that share a table; over model size, then over every axis of counts; where there is
    none of these, in lanes."""
    known = [row for row in rows if quantity.find_value(row)]
    if not known:
        return
    table = read_table(rows)
    overs = []
    sizes = {row.record.facts.get(SIZE) for row in known if "model" in row.record.params}
    if "model" in table.axes and len(sizes) > 1 and is_ratio(*sizes):
        overs.append(Over(label=SIZE, axis="model", find=lambda row: row.record.facts[SIZE]))
    axes = [axis for axis in table.axes if axis not in NOT_A_SIZE]
    overs += [_over_axis(axis) for axis in axes if _is_axis_of_counts(known, axis)]
    for over in overs:
        for lines in _divide_lines(known, over, quantity, table):
            yield _draw_lines(lines, over, quantity, table)
    if not overs:
        for some in divide_lanes(known):
            yield _draw_lanes(some, quantity, table)


def _is_axis_of_counts(rows: Sequence[Row], axis: str) -> bool:
    """Whether all its values are whole numbers from 1 on, of which there are at least two."""

    def is_count(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63

    values = [row.record.params.get(axis) for row in rows]
    return all(map(is_count, values)) and len(set(values)) > 1


def _over_axis(axis: str) -> Over:
    return Over(label=axis, axis=axis, find=lambda row: float(row.record.params[axis]))


def _divide_lines(
    rows: Sequence[Row], over: Over, quantity: Quantity, table: Table
) -> Iterator[Lines]:
    """Of what can be tuned, the best is taken. A single point is no line."""
    best: dict[tuple[str, str], dict[float, Row]] = {}
    for row in rows:
        key = (row.record.variant, table.name_case(row, over.axis, *TUNABLE))
        line, x = best.setdefault(key, {}), over.find(row)
        if x not in line or quantity.find_value(row) > quantity.find_value(line[x]):
            line[x] = row
    lines = {key: [line[x] for x in sorted(line)] for key, line in best.items() if len(line) > 1}
    if len(lines) <= MOST_LINES:
        if lines:
            yield lines
        return
    for wanted in dict.fromkeys(others for _, others in lines):
        yield {key: line for key, line in lines.items() if key[1] == wanted}


def _name_lines(lines: Lines, over: Over, table: Table) -> tuple[dict[tuple[str, str], str], str]:
    """By what they differ in; and what they have in common."""
    params = {key: line[0].record.params for key, line in lines.items()}
    axes = [axis for axis in table.axes if axis not in (over.axis, *TUNABLE)]
    values = {axis: {format_value(p.get(axis)) for p in params.values()} for axis in axes}
    differing = [axis for axis in axes if len(values[axis]) > 1]
    shared = " ".join(f"{axis}={min(values[axis])}" for axis in axes if axis not in differing)
    by_variant = len({variant for variant, _ in lines}) > 1 or not differing

    def name(axis: str, value: Any) -> str:
        """Words say what they are, numbers do not."""
        return value if isinstance(value, str) else f"{axis}={format_value(value)}"

    names = {
        key: join(*([key[0]] if by_variant else []), *(name(a, own.get(a)) for a in differing))
        for key, own in params.items()
    }
    return names, shared


def _draw_lines(lines: Lines, over: Over, quantity: Quantity, table: Table) -> Plot:
    names, shared = _name_lines(lines, over, table)
    has_own_variants = len({variant for variant, _ in lines}) == len(lines)
    found: dict[str, Values] = {}
    numbers: dict[str, int] = {}
    for number, (key, line) in enumerate(lines.items()):
        name = printable(names[key])
        points = [_make_point(row, over, quantity, table) for row in line]
        if quantity is SCALING:
            first = points[0]
            for point in points:
                share = point["y"] * first["x"] / (first["y"] * point["x"])
                point["tip"] += f"\n{100 * share:.0f} % of ideal"
        found[name] = [{**point, "series": name} for point in thin(points)]
        # Where there is one line a variant, it looks as in all plots of the variant.
        numbers[name] = table.numbers[key[0]] if has_own_variants else number
    points = [point for line in found.values() for point in line]
    data = {"points": points}
    if quantity is SCALING:
        start = max((line[0] for line in found.values()), key=lambda p: p["y"] / p["x"])
        end = max(point["x"] for point in points)
        data["ideal"] = [
            {
                "x": start["x"],
                "x2": end,
                "y": start["y"],
                "y2": start["y"] * end / start["x"],
                "text": "ideal",
            }
        ]
    reach = [v for p in points for v in (p["y"], p["low"], p["high"]) if v is not None]
    is_log = quantity is SCALING or (quantity.name != "mfu" and max(reach) > WIDE * min(reach))
    y = (
        make_log_axis(quantity.axis_title, reach, quantity.label)
        if is_log
        else Axis(title=quantity.axis_title, label=quantity.label, begins_at_zero=True)
    )
    x = make_count_axis(over.label, [point["x"] for point in points])
    ordered = {name: numbers[name] for name in order_by_end(found)}
    is_tuned = bool({*TUNABLE} & {*table.axes})
    xy = {"x": x.channel(grid=False), "y": y.channel("y")}
    return table.make_plot(
        name=quantity.name,
        title=f"{quantity.title} by {over.label}",
        shared=shared,
        caption=_write_caption(quantity, points, is_tuned=is_tuned),
        data=data,
        layers=[*(_draw_ideal(xy) if "ideal" in data else []), *_draw_series(xy, ordered)],
        height=280,
    )


def _draw_ideal(xy: Layer) -> list[Layer]:
    end = {"x": {**xy["x"], "field": "x2"}, "y": {**xy["y"], "field": "y2"}}
    return [
        rule("ideal", **xy, x2={"field": "x2"}, y2={"field": "y2"}),
        text("ideal", end, style="note", align="right", dx=-10),
    ]


def _draw_series(xy: Layer, numbers: dict[str, int]) -> list[Layer]:
    looks = series_channels(numbers, dash=True, **RIGHT)
    colour = {"color": looks["color"], "opacity": PICKED}
    interval = {"x": xy["x"], "y": {**xy["y"], "field": "low"}, "y2": {"field": "high"}, **colour}
    line = {**xy, **colour, "strokeDash": looks["strokeDash"]}
    return [
        layer("points", {"type": "rule", "strokeWidth": 1.6}, interval, where=HAS_INTERVAL),
        layer("points", {"type": "line", "strokeWidth": 2}, line, params=[pick_by_legend()]),
        draw_points({**xy, "opacity": PICKED}, looks, where_certain=HAS_INTERVAL),
    ]


def _make_point(row: Row, over: Over, quantity: Quantity, table: Table) -> dict[str, Any]:
    x = over.find(row)
    where = f"{over.label} {format_count(x)}" if over.label == SIZE else ""
    return {"x": x, **_measure(row, quantity, table, "y", where)}


def _measure(
    row: Row, quantity: Quantity, table: Table, field: str, where: str = ""
) -> dict[str, Any]:
    estimate = quantity.find(row)
    assert estimate is not None
    has_interval = is_ratio(estimate.low, estimate.high)
    interval = "interval unknown"
    if estimate.low is not None and estimate.high is not None and has_interval:
        interval = f"[{quantity.show(estimate.low)}, {quantity.show(estimate.high)}]"
    lines = filter(None, [where, f"{quantity.show(estimate.value)} {interval}"])
    return {
        field: estimate.value,
        "low": estimate.low if has_interval else None,
        "high": estimate.high if has_interval else None,
        "tip": table.tip(row, *lines),
    }


def _write_caption(quantity: Quantity, points: Values, *, is_tuned: bool) -> str:
    known = [point["low"] is not None for point in points]
    return join(
        quantity.caption,
        "Of several batches, the fastest." if is_tuned else "",
        "Bars are intervals at 99 %." if any(known) else "",
        "" if all(known) else "Hollow: the interval is not known.",
    )


def _draw_lanes(rows: Sequence[Row], quantity: Quantity, table: Table) -> Plot:
    lanes = lay_lanes(rows, table, 20)
    points = [
        {**_measure(row, quantity, table, "x"), "y": y, "series": printable(row.record.variant)}
        for y, row in lanes.rows
    ]
    axis = Axis(title=quantity.axis_title, label=quantity.label, begins_at_zero=True)
    numbers = {printable(row.record.variant): table.numbers[row.record.variant] for row in rows}
    looks = {"color": series_channels(numbers)["color"]}
    x, y = axis.channel(), lanes.channel()
    interval = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, **looks}
    return lanes.make_plot(
        name=quantity.name,
        title=quantity.title,
        caption=_write_caption(quantity, points, is_tuned=False),
        note=lambda row: quantity.show(quantity.find_value(row)),
        data={"points": points},
        layers=[
            layer("points", {"type": "rule", "strokeWidth": 1.8}, interval, where=HAS_INTERVAL),
            draw_points({"x": x, "y": y}, looks, where_certain=HAS_INTERVAL),
        ],
        with_guides=True,
        is_informative=quantity.name != "throughput",
    )
