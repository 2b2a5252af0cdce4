"""What specifications are made of: axes with units that people read, series with their colours,
shapes and dashes, and the layers that several plots share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.output.plots.plot import Layer
from flopwatch.output.plots.theme import INKS, choose_colour, choose_dash, choose_shape
from flopwatch.output.units import TIME_UNITS

MOST_COUNTS = 16
SI = "format(datum.value, '~s')"
SHORT = (
    "length(datum.label) > 30 ? slice(datum.label, 0, 14) + '…' + slice(datum.label, -15) "
    ": datum.label"
)
"""Long names lose their middle: variants often differ at the end."""
RATIO_LABEL = "format(datum.value, '~g') + 'x'"
LEGEND_PX = 560
"""What a legend above a plot of a file has."""
HAS_INTERVAL = "isValid(datum.low)"
TIP: Layer = {"tooltip": {"field": "tip"}, "description": {"field": "tip"}}
"""What a mark says under the pointer, and to screen readers."""
PICKED: Layer = {"condition": {"param": "pick", "value": 1}, "value": 0.08}
"""The opacity of what is chosen in the legend, or not."""

Unit = tuple[tuple[float, str], ...]
"""How much each step is, and its name; the largest first."""
DURATION: Unit = ((3600e9, "hours"), (60e9, "minutes"), (1e9, "seconds"))
BYTES: Unit = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
TIME: Unit = TIME_UNITS
PLAIN: Unit = ((1.0, ""),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    title: str
    size: float = 1.0
    """What values are divided by, for the unit in the title."""
    label: str = ""
    """A Vega expression of a tick's `datum.value`."""
    is_log: bool = False
    begins_at_zero: bool = False
    ticks: tuple[float, ...] = ()

    def scale(self, value: float) -> float:
        """In the axis's unit, with more figures than can be seen."""
        return float(f"{value / self.size:.7g}")

    def channel(self, field: str = "x", **axis: Any) -> Layer:
        label = {"labelExpr": self.label} if self.label else {}
        ticks = {"values": [self.scale(tick) for tick in self.ticks]} if self.ticks else {}
        kind: Layer = {"type": "log"} if self.is_log else {"zero": self.begins_at_zero}
        # Marks at the ends of an axis are not cut off.
        room = {"nice": True} if self.begins_at_zero else {"nice": False, "padding": 10}
        return {
            "field": field,
            "type": "quantitative",
            "title": self.title,
            "scale": {**kind, **room},
            "axis": {"tickCount": 7, **label, **ticks, **axis},
        }


def make_axis(
    title: str,
    values: Iterable[float],
    unit: Unit,
    *,
    is_log: bool = False,
    from_zero: bool = False,
) -> Axis:
    """In the unit that suits the largest of the values; on a logarithmic axis from microseconds to
    seconds, every tick has a unit of its own."""
    known = [abs(value) for value in values]
    ticks = tuple(choose_log_ticks(min(known), max(known))) if is_log else ()
    if is_log and unit is TIME and max(known) > 100 * min(known):
        return Axis(title=title, size=1e9, label=f"{SI} + 's'", is_log=True, ticks=ticks)
    size, name = next((step for step in unit if max(known) >= step[0]), unit[-1])
    return Axis(
        title=f"{title}, {name}" if name else title,
        size=size,
        is_log=is_log,
        begins_at_zero=from_zero,
        ticks=ticks,
    )


def make_log_axis(title: str, values: Iterable[float], label: str = SI) -> Axis:
    known = list(values)
    ticks = tuple(choose_log_ticks(min(known), max(known)))
    return Axis(title=title, label=label, is_log=True, ticks=ticks)


def choose_log_ticks(low: float, high: float) -> list[float]:
    """Round numbers that are as far apart in all decades, 1 among them: Vega's own leave gaps. None
    where the range is too narrow for these.

    >>> choose_log_ticks(0.6, 3.1), choose_log_ticks(0.09, 4), choose_log_ticks(1, 1.01)
    ([0.7, 1.0, 1.5, 2.0, 3.0], [0.1, 0.2, 0.5, 1.0, 2.0], [])
    """
    decades = math.log10(high) - math.log10(low)
    if decades < 0.4:
        return []
    digits = (1, 1.5, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2.7 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = math.ceil((last - first) / 8)
    powers = [power for power in range(first, last + 1) if power % stride == 0]
    marks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return [mark for mark in marks if low * 0.93 <= mark <= high * 1.07]


def make_count_axis(title: str, counts: Iterable[float]) -> Axis:
    """Logarithmic, with a tick at each of the counts that there are, unless those are many."""
    known = sorted(set(counts))
    ticks = tuple(known) if len(known) <= MOST_COUNTS else ()
    label = "format(datum.value, 'd')" if known[-1] < 1e7 else "format(datum.value, '.3~s')"
    return Axis(title=title, is_log=True, ticks=ticks, label=label)


def series_channels(numbers: Mapping[str, int], *, dash: bool = False, **legend: Any) -> Layer:
    """Colour, shape and dash of each series by its number, with one legend for all of them where it
    is said where that stands."""
    names = list(numbers)
    ranges: dict[str, list[Any]] = {
        "color": [choose_colour(number) for number in numbers.values()],
        "shape": [choose_shape(number) for number in numbers.values()],
    }
    if dash:
        ranges["strokeDash"] = [choose_dash(number) for number in numbers.values()]
    shown = {"title": None, "labelExpr": SHORT, **legend} if legend else None
    return {
        channel: {
            "field": "series",
            "type": "nominal",
            "scale": {"domain": names, "range": values},
            "legend": shown,
        }
        for channel, values in ranges.items()
    }


RIGHT: Layer = {"orient": "right", "columns": 1}
"""A legend in the order in which lines end."""


def lay_above(names: Iterable[str]) -> Layer:
    """A legend above the plot, in as many columns as the longest name leaves."""
    longest = max([min(len(name), 30) for name in names], default=1)
    return {"orient": "top", "columns": max(1, int(LEGEND_PX / (44 + 6.4 * longest)))}


def pick_by_legend(field: str = "series") -> Layer:
    """A click on a name of the legend shows that one alone, or with those that are shown."""
    select = {"type": "point", "fields": [field], "toggle": "true"}
    return {"name": "pick", "select": select, "bind": "legend"}


def zoom(*encodings: str) -> Layer:
    """By dragging, and by the wheel with Shift: a page must still scroll. A double click resets."""
    select = {
        "type": "interval",
        "encodings": list(encodings),
        "translate": "[mousedown, window:mouseup] > window:mousemove!",
        "zoom": "wheel![event.shiftKey]",
    }
    return {"name": "zoom", "select": select, "bind": "scales"}


def layer(
    data: str, mark: Layer, encoding: Layer, *, where: str = "", params: Sequence[Layer] = ()
) -> Layer:
    """`where` is a Vega expression of a datum, which chooses what is drawn."""
    chosen = {"transform": [{"filter": where}]} if where else {}
    chosen |= {"params": list(params)} if params else {}
    return {"data": {"name": data}, **chosen, "mark": mark, "encoding": encoding}


def rule(data: str, **encoding: Any) -> Layer:
    """A line to compare with."""
    mark = {"type": "rule", "color": INKS.quiet, "strokeDash": [5, 4], "strokeWidth": 1.2}
    return layer(data, mark, encoding)


def text(data: str, encoding: Layer, *, where: str = "", **mark: Any) -> Layer:
    words = {**encoding, "text": {"field": "text", **encoding.get("text", {})}}
    return layer(data, {"type": "text", **mark}, words, where=where)


def draw_points(encoding: Layer, looks: Layer, *, where_certain: str, **more: Any) -> Layer:
    """Of the data `points`. What is not certain is hollow."""
    mark = {"type": "point", "size": 60, "opacity": 1, "strokeWidth": 1.6}
    paper = {"test": f"!({where_certain})", "value": INKS.paper}
    colours = {"stroke": looks["color"], "fill": {**looks["color"], "condition": paper}}
    shape = {"shape": looks["shape"]} if "shape" in looks else {}
    return layer("points", mark, {**encoding, **colours, **shape, **TIP}, **more)


def order_by_end(lines: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    """Names of lines, as they end from top to bottom."""
    return sorted(lines, key=lambda name: -lines[name][-1]["y"])
