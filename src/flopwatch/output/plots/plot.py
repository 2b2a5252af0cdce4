"""A plot: a Vega-Lite specification with its words.

Values from records are data of the specification, never a part of an expression. Numbers that no
measurement gives (NaN, infinities, beyond 1e100) are left out before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from flopwatch.output.plots.theme import make_config
from flopwatch.output.units import printable

VERSION = "5.21"
"""Of Vega-Lite: what the page carries, what vl-convert is asked for, and what JupyterLab shows."""
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
MIME = "application/vnd.vegalite.v5+json"
MAKER = "drawn by flopwatch"
"""Stands in every file, by which a plot of ours is recognised."""
WIDTH = 720
"""Of a file, in pixels, with labels and legend."""
MOST_POINTS = 400
"""Of one series: more cannot be seen, and a page must stay small."""
HUGE = 1e100
"""Values beyond this are no measurements, and would spoil the arithmetic of a scale."""
LONGEST_NAME = 36

Values = list[dict[str, Any]]
Layer = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    name: str
    """Its kind: one of `KINDS`."""
    title: str
    subject: str
    """What was measured: the suite, and what all cases share."""
    caption: str
    """How to read it, in a sentence or two."""
    conditions: str
    """How it was measured."""
    data: dict[str, Values]
    """By the name that layers refer to."""
    layers: list[Layer]
    height: float
    is_informative: bool = True
    """Whether it says more than the table next to it."""

    @property
    def can_zoom(self) -> bool:
        params = [param for layer in self.layers for param in layer.get("params", [])]
        return any(param["name"] == "zoom" for param in params)

    def to_view(self) -> dict[str, Any]:
        """As wide as what it is put into, without words and theme, which a page has itself."""
        return {
            "$schema": SCHEMA,
            "description": printable(f"{self.title}. {self.caption}"),
            "width": "container",
            "height": self.height,
            "autosize": {"type": "fit-x", "contains": "padding"},
            "datasets": self.data,
            "layer": self.layers,
        }

    def to_spec(self) -> dict[str, Any]:
        """The whole specification, with title, caption and theme."""
        below = [self.subject, self.caption, self.conditions]
        return {
            **self.to_view(),
            "width": WIDTH,
            "padding": 12,
            "title": {
                "text": wrap(printable(self.title), 80),
                "subtitle": [line for text in below for line in wrap(printable(text), 118)],
            },
            "config": make_config(),
            "usermeta": {"generator": MAKER},
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """How notebooks show it."""
        return {MIME: self.to_spec(), "text/plain": f"{self.title}, {self.subject}"}


def is_drawable(*values: float | None) -> bool:
    """Whether all of them are numbers that a scale can hold.

    >>> is_drawable(1.0, -3), is_drawable(float("nan")), is_drawable(1e300), is_drawable(None)
    (True, False, False, False)
    """
    return all(value is not None and abs(value) < HUGE for value in values)


def is_ratio(*values: float | None) -> bool:
    """The same for a logarithmic scale, on which there is no 0."""
    return all(value is not None and 1 / HUGE < value < HUGE for value in values)


def shorten(name: str) -> str:
    """Long names lose their middle: variants often differ at the end.

    >>> shorten("switchback:rowwise:keep-int8:torch-kernels")
    'switchback:rowwis…int8:torch-kernels'
    """
    name = printable(name)
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def thin(values: Values, by: str = "y") -> Values:
    """At most MOST_POINTS, the first and the last among them. Of neighbours the lowest and the
    highest stay, so that no outlier is lost."""
    if len(values) <= MOST_POINTS:
        return values
    first, *between, last = values
    size = math.ceil(len(between) / (MOST_POINTS // 2 - 1))
    kept = [first]
    for start in range(0, len(between), size):
        places = range(start, min(start + size, len(between)))
        ends = {
            min(places, key=lambda place: between[place][by]),
            max(places, key=lambda place: between[place][by]),
        }
        kept += [between[place] for place in sorted(ends)]
    return [*kept, last]


def join(*words: str) -> str:
    return " ".join(filter(None, words))
