"""Predictions next to measurements: the predicted time with its 90 % interval, and what was then
measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.summary import Row
from flopwatch.output.plots.channels import RATIO_LABEL, TIP, layer, make_log_axis, rule, text
from flopwatch.output.plots.lanes import divide_lanes, lay_lanes, read_table
from flopwatch.output.plots.plot import Plot, Values, is_ratio
from flopwatch.output.plots.theme import INKS, choose_colour
from flopwatch.output.units import format_ratio, format_time
from flopwatch.prediction.scorecard import Judged, judge


def make_predictions(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those that carry a prediction."""
    found = {id(row): judge(row.record) for row in rows}
    for some in divide_lanes([row for row in rows if found[id(row)] is not None]):
        yield _draw(some, {key: one for key, one in found.items() if one is not None}, rows)


def _draw(some: Sequence[Row], judged: dict[int, Judged], rows: Sequence[Row]) -> Plot:
    lanes = lay_lanes(some, read_table(rows), 22)
    points: Values = []
    for y, row in lanes.rows:
        one, interval = judged[id(row)], row.record.prediction or {}
        measured_s = one.measured_s
        low, middle, high = (
            end / measured_s for end in (interval["low_s"], one.predicted_s, interval["high_s"])
        )
        if is_ratio(low, middle, high):
            told = f"predicted {format_time(1e9 * one.predicted_s)}, {format_ratio(middle)}"
            tip = lanes.table.tip(row, f"measured {format_time(1e9 * measured_s)}", told)
            points.append(
                {"x": middle, "low": low, "high": high, "y": y, "tip": tip, "in": one.is_inside}
            )
    reach = [point[key] for point in points for key in ("low", "high")]
    x = make_log_axis("predicted over measured time", [1.0, *reach], RATIO_LABEL).channel()
    xy = {"x": x, "y": lanes.channel()}
    colour = choose_colour(1)
    span = {"type": "rule", "strokeWidth": 6, "opacity": 0.35, "color": colour}
    dot = {"type": "point", "size": 60, "strokeWidth": 1.6, "color": colour}
    return lanes.make_plot(
        name="predictions",
        title="Predicted over measured time",
        caption=(
            "A mark is the prediction, a band its 90 % interval; filled: the measurement lies in "
            "it. Right of 1x, the step was faster than predicted. On the right, the measured time."
        ),
        note=lambda row: format_time(1e9 * judged[id(row)].measured_s),
        data={"points": points, "measured": [{"x": 1.0, "text": "measured"}]},
        layers=[
            rule("measured", x=x),
            text("measured", {"x": x, "y": {"value": 0}}, style="note", dy=-8),
            layer("points", span, {**xy, "x": {**x, "field": "low"}, "x2": {"field": "high"}}),
            layer("points", {**dot, "filled": True}, {**xy, **TIP}, where="datum['in']"),
            layer("points", {**dot, "fill": INKS.paper}, {**xy, **TIP}, where="!datum['in']"),
        ],
        with_guides=True,
    )
