"""Speedups over the baseline: case by case with their intervals and what arithmetic would give, and
over an axis of counts, with the break-even."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flopwatch.analysis.break_even import BreakEven, find_break_evens
from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.output.case_tables import format_crossing, group_break_evens, list_tokens
from flopwatch.output.columns import NOT_COMPARABLE
from flopwatch.output.plots.channels import (
    HAS_INTERVAL,
    PICKED,
    RATIO_LABEL,
    RIGHT,
    TIP,
    Axis,
    draw_points,
    lay_above,
    layer,
    make_count_axis,
    make_log_axis,
    order_by_end,
    pick_by_legend,
    rule,
    series_channels,
    text,
)
from flopwatch.output.plots.lanes import MOST_LANES, Lanes, Table, lay_lanes, read_table
from flopwatch.output.plots.plot import MOST_POINTS, Layer, Plot, Values, is_ratio, join, thin
from flopwatch.output.plots.theme import INKS
from flopwatch.output.units import format_ratio, format_speedup, printable

LIMIT = "limit by FLOPs alone"
CLEAR, UNCLEAR, UNKNOWN = "clear verdict", "unclear: the interval has 1x", "interval unknown"
STATES = {
    CLEAR: ("circle", INKS.text, [1, 0], INKS.text),
    UNCLEAR: ("circle", INKS.paper, [1, 0], INKS.text),
    UNKNOWN: ("circle", INKS.paper, [2, 2], INKS.text),
    NOT_COMPARABLE: ("diamond", INKS.paper, [1, 0], INKS.text),
    LIMIT: ("M0,-1L0,1", INKS.text, [1, 0], INKS.text),
}
"""What a point may be: its shape, its fill in the legend, and the dash and the legend's
colour of its outline."""
SHARED_LANE_PX = 60.0
OPEN_PX = 26
"""How far an interval that is not known is drawn on both sides."""
FEWEST_COUNTS = 3
"""Of an axis: two make a line, and no curve."""


def make_speedups(rows: Sequence[Row]) -> Iterator[Plot]:
    """One, of rows that share a table; none where nothing was compared."""
    compared = [row for row in rows if row.speedup and is_ratio(row.speedup.value)]
    if not compared:
        return
    table = read_table(rows)
    is_shared = len(compared) > MOST_LANES
    lanes = _share_lanes(compared, table) if is_shared else lay_lanes(compared, table, 20)
    points = [_make_point(y, row, table) for y, row in lanes.rows]
    reach = [p[key] for p in points for key in ("x", "low", "high", "limit") if p[key]]
    axis = make_log_axis("speedup", [1.0, *reach], RATIO_LABEL)
    baseline = compared[0].record.baseline
    yield lanes.make_plot(
        name="speedups",
        title=f"Speedup over {baseline}",
        caption=_write_caption(points, baseline),
        note=None
        if is_shared
        else lambda row: format_ratio(row.speedup.value if row.speedup else None),
        data={"points": points, "baseline": [{"x": 1.0, "text": printable(baseline)}]},
        layers=_draw_points(points, axis, lanes, is_shared=is_shared),
        with_guides=not is_shared,
        is_informative=len(points) > 1,
    )


def _share_lanes(rows: Sequence[Row], table: Table) -> Lanes:
    """A lane for every variant, and in it all its cases from the fastest to the slowest, one
    slightly below the other."""
    by_variant: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        assert row.speedup is not None
        by_variant.setdefault(row.record.variant, []).append((row.speedup.value, row))
    placed: list[tuple[float, Row]] = []
    names: Values = []
    for lane, (variant, found) in enumerate(by_variant.items()):
        found.sort(key=lambda pair: -pair[0])
        most = min(len(found), MOST_POINTS)
        for place in range(most):
            _, row = found[round(place * (len(found) - 1) / max(1, most - 1))]
            placed.append((-lane + 0.35 - 0.7 * place / max(1, most - 1), row))
        ends = dict.fromkeys([format_ratio(found[-1][0]), format_ratio(found[0][0])])
        names.append({"y": -lane, "text": printable(variant), "note": " to ".join(ends)})
    return Lanes(
        table=table,
        rows=placed,
        names=names,
        headings=[],
        count=len(names),
        lane_px=SHARED_LANE_PX,
    )


def _make_point(y: float, row: Row, table: Table) -> dict[str, Any]:
    speedup = row.speedup
    assert speedup is not None
    has_interval = is_ratio(speedup.low, speedup.high)
    state = _judge(row, has_interval=has_interval)
    limit = row.limit if is_ratio(row.limit) else None
    lines = [f"{format_speedup(speedup)}, {row.verdict}"]
    lines += [f"limit {format_ratio(limit)}"] if limit is not None else []
    lines += [NOT_COMPARABLE] if row.differences else []
    return {
        "x": speedup.value,
        "y": y,
        "low": speedup.low if has_interval else None,
        "high": speedup.high if has_interval else None,
        "limit": limit,
        "series": printable(row.record.variant),
        "number": table.numbers[row.record.variant],
        "state": state,
        "is_clear": state == CLEAR,
        "tip": table.tip(row, *lines),
    }


def _judge(row: Row, *, has_interval: bool) -> str:
    if row.differences:
        return NOT_COMPARABLE
    if not has_interval:
        return UNKNOWN
    return UNCLEAR if row.verdict == "unclear" else CLEAR


def _draw_points(points: Values, axis: Axis, lanes: Lanes, *, is_shared: bool) -> list[Layer]:
    numbers = {point["series"]: point["number"] for point in points}
    colour = series_channels(numbers)["color"]
    x, y = axis.channel(), lanes.channel()
    if any(point["low"] is None for point in points):  # arrows need room
        x["scale"]["padding"] = OPEN_PX + 6
    xy = {"x": x, "y": y, "color": colour, "opacity": PICKED}
    looks = _name_states(points)
    mark = {"type": "point", "size": 22 if is_shared else 60, "strokeWidth": 1.6}
    unknown = {"type": "rule", "strokeDash": [2, 3], "xOffset": -OPEN_PX, "x2Offset": OPEN_PX}
    arrow = {"type": "point", "size": 24, "filled": True}
    interval = {"x": {**x, "field": "low"}, "x2": {"field": "high"}}
    parts: list[tuple[str, Layer, Layer]] = [
        (
            "isValid(datum.low)",
            {"type": "rule", "strokeWidth": 0.6 if is_shared else 1.8},
            interval,
        ),
        (f"!{HAS_INTERVAL}", unknown, {"x2": {"field": "x"}}),
        # It may reach anywhere: open on both sides.
        *(
            (f"!{HAS_INTERVAL}", {**arrow, "shape": shape, "xOffset": way * OPEN_PX}, {})
            for shape, way in (("triangle-left", -1), ("triangle-right", 1))
            if not is_shared
        ),
        ("datum.is_clear", {**mark, "filled": True}, TIP),
        # What is not certain is hollow.
        (
            "!datum.is_clear",
            {**mark, "fill": INKS.paper},
            {"shape": looks["shape"], "strokeDash": looks["strokeDash"], **TIP},
        ),
    ]
    if not is_shared:  # in a crowd, tips have them
        tick = {"type": "tick", "orient": "vertical", "size": 12, "thickness": 2}
        ink = {"color": {"value": INKS.text}}
        parts.append(("isValid(datum.limit)", tick, {"x": {**x, "field": "limit"}, **ink, **TIP}))
    layers = [
        layer("points", mark, {**xy, **encoding}, where=test) for test, mark, encoding in parts
    ]
    layers.append(_draw_legend({"x": x, "y": y, **looks}))
    name = text("baseline", {"x": x, "y": {"value": 0}}, style="note", dy=-8, limit=160)
    return [rule("baseline", x=x), *layers, name]


def _draw_legend(encoding: Layer) -> Layer:
    """Of what points are: nothing to be seen but its legend, which theirs cannot be, as their
    colours say whose they are."""
    mark = {"type": "point", "opacity": 0, "size": 0}
    return layer("points", mark, encoding, params=[pick_by_legend("state")])


def _name_states(points: Values) -> Layer:
    """Shape, dash and fill by what a point is. Whether it is certain matters more than whose it
    is, which its lane says: this is what the legend shows."""
    found = {point["state"] for point in points}
    found |= {LIMIT} if any(point["limit"] for point in points) else set()
    states = {state: look for state, look in STATES.items() if state in found}
    legend = {"title": None, **lay_above(states)} if states.keys() != {CLEAR} else None
    return {
        channel: {
            "field": "state",
            "type": "nominal",
            "scale": {"domain": list(states), "range": [look[place] for look in states.values()]},
            "legend": legend,
        }
        for place, channel in enumerate(("shape", "fill", "strokeDash", "stroke"))
    }


def _write_caption(points: Values, baseline: str) -> str:
    unknown = sum(point["low"] is None for point in points)
    told = "" if unknown == len(points) else " with their 99 % intervals"
    dotted = ""
    if unknown:
        which = "" if unknown == len(points) else f"of {unknown} of {len(points)} "
        dotted = f" Dotted arrows: the interval {which}is not known."
    return f"Speedups over {baseline}{told}, a mark for each case. Right of 1x is faster.{dotted}"


# Break-even


def make_break_evens(rows: Sequence[Row]) -> Iterator[Plot]:
    """One for every axis of counts and set of other parameters; of rows that share a table."""
    compared = [row for row in rows if row.speedup and is_ratio(*_list_values(row.speedup))]
    if not compared:
        return
    table = read_table(rows)
    for axis in table.axes:
        for group in group_break_evens(find_break_evens(compared, axis)):
            if len(list_tokens(group)) > 1:
                yield _make_break_even(group, table)


def _list_values(speedup: Estimate) -> list[float]:
    """With the ends of the interval where they are known."""
    return [v for v in (speedup.value, speedup.low, speedup.high) if v is not None]


def _make_break_even(group: Sequence[BreakEven], table: Table) -> Plot:
    first, axis = group[0].rows[0], group[0].axis
    baseline = first.record.baseline
    lines = {printable(one.rows[0].record.variant): _list_points(one, table) for one in group}
    points = [point for line in lines.values() for point in line]
    is_bare = all(one.is_bare for one in group)
    has_bands = any(point["low"] is not None for point in points)
    reach = [v for p in points for v in (p["y"], p["low"], p["high"]) if v is not None]
    numbers = {name: lines[name][0]["number"] for name in order_by_end(lines)}
    bands = "Bands are the 99 % intervals of the speedups."
    return table.make_plot(
        name="break-even",
        title=f"Speedup over {baseline} by {axis}",
        shared=table.name_case(first, axis),
        caption=join(
            _tell_crossings(group) if is_bare else _tell_starts(group),
            bands if has_bands else "No speedup here has an interval.",
        ),
        data={
            "points": points,
            "crossings": [crossing for one in group for crossing in _list_crossings(one)],
            "baseline": [{"y": 1.0, "text": printable(baseline)}],
        },
        layers=_draw_break_even(
            make_count_axis(axis, list_tokens(group)).channel(grid=False),
            make_log_axis("speedup", [1.0, *reach], RATIO_LABEL).channel("y"),
            series_channels(numbers, dash=True, **RIGHT),
        ),
        height=280,
        is_informative=len(list_tokens(group)) >= FEWEST_COUNTS,
    )


def _list_points(break_even: BreakEven, table: Table) -> Values:
    points: Values = []
    for row in break_even.rows:
        speedup = row.speedup
        assert speedup is not None
        pays = row in break_even.paying[:1]
        lines = [f"{format_speedup(speedup)}, {row.verdict}", *(["break-even"] * pays)]
        points.append(
            {
                "x": break_even.place(row),
                "y": speedup.value,
                "low": speedup.low,
                "high": speedup.high,
                "series": printable(row.record.variant),
                "number": table.numbers[row.record.variant],
                "is_certain": row.verdict != "unclear" and not row.differences,
                "pays": pays,
                "tip": table.tip(row, *lines, *([NOT_COMPARABLE] if row.differences else [])),
            }
        )
    return thin(points)


def _list_crossings(break_even: BreakEven) -> Values:
    variant = break_even.rows[0].record.variant
    return [
        {
            "x": crossing.point,
            "y": 1.0,
            "low": crossing.low,
            "high": crossing.high,
            "series": printable(variant),
            "tip": printable(
                f"{variant} crosses 1x at {break_even.axis}={format_crossing(crossing)}, "
                "interpolated"
            ),
        }
        for crossing in break_even.crossings
    ]


def _draw_break_even(x: Layer, y: Layer, looks: Layer) -> list[Layer]:
    xy = {"x": x, "y": y, "opacity": PICKED}
    colour = {"color": looks["color"]}
    band = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "fill": looks["color"]}
    faint = {"opacity": {"condition": {"param": "pick", "value": 0.16}, "value": 0.02}}
    line = {**xy, **colour, "strokeDash": looks["strokeDash"]}
    ring = {"type": "point", "shape": "circle", "size": 260, "strokeWidth": 2, "filled": False}
    down = {**xy, "y2": {"value": "height"}, **colour, **TIP}
    along = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, **colour, **TIP}
    wide = {"type": "rule", "strokeWidth": 5, "opacity": 0.35}
    end = {"x": {"value": "width"}, "y": y}
    return [
        rule("baseline", y=y),
        text("baseline", end, style="note", align="right", dx=-14, dy=-7, limit=160),
        layer("points", {"type": "area"}, {**band, **faint}, where=HAS_INTERVAL),
        layer("points", {"type": "line", "strokeWidth": 2}, line, params=[pick_by_legend()]),
        draw_points(xy, looks, where_certain="datum.is_certain"),
        layer("points", ring, {**xy, **colour, **TIP}, where="datum.pays"),
        # Down to the axis from where a line crosses 1x, and along 1x the interval of that.
        layer("crossings", {"type": "rule", "strokeDash": [2, 3]}, down),
        layer("crossings", wide, along, where=HAS_INTERVAL),
    ]


def _tell_starts(group: Sequence[BreakEven]) -> str:
    """In a sentence; the tables have every number."""
    by_start: dict[int | None, list[str]] = {}
    for one in group:
        start = one.place(one.paying[0]) if one.paying else None
        by_start.setdefault(start, []).append(one.rows[0].record.variant)
    starts = sorted(start for start in by_start if start is not None)
    told = [f"{', '.join(by_start[start])} from {group[0].axis}={start} on" for start in starts]
    if not told:
        return "At the largest measured, none is clearly faster."
    if None in by_start:
        told.append(f"{', '.join(by_start[None])} nowhere that lasts")
    return f"Break-even, ringed: {'; '.join(told)}."


def _tell_crossings(group: Sequence[BreakEven]) -> str:
    """Of speedups whose noise is not known."""
    told = [
        f"{one.rows[0].record.variant} crosses 1x at {one.axis} {format_crossing(crossing)}"
        for one in group
        for crossing in one.crossings
    ]
    return f"By their values, {'; '.join(told)}." if told else ""
