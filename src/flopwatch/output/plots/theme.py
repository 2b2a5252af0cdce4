"""How plots look: colours that colour-blind people can tell apart, in a light and a dark form.

A specification has the light colours. A page that is dark replaces each of them by the one that
`DARK` has for it, and takes the configuration `make_config(DARK_INKS)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Inks:
    paper: str
    text: str
    quiet: str
    line: str
    series: tuple[str, ...]
    """The first is the baseline's."""


INKS = Inks(
    paper="#ffffff",
    text="#1c1e21",
    quiet="#5c6470",
    line="#d5d9e0",
    series=("#333333", "#0d45de", "#8d1d00", "#2aaa66", "#790a83", "#c98a15"),
)
DARK_INKS = Inks(
    paper="#16181c",
    text="#e4e6ea",
    quiet="#9aa3af",
    line="#3a3f48",
    series=("#dddddd", "#79a3d8", "#d35609", "#0bf17e", "#b148f6", "#fecf1e"),
)
COLOURS = len(INKS.series) - 1
"""Besides the baseline's."""
DASHES = ([1, 0], [7, 3], [2, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
SHADES = (0.6, 0.36, 0.2, 0.1)
"""How much of its colour a bar has: little enough for text on top, light and dark."""
SMALL_PX = 11
TEXT_PX = 12


def choose_colour(number: int) -> str:
    return INKS.series[0 if number == 0 else (number - 1) % COLOURS + 1]


def tint(colour: str, paper: str, share: float) -> str:
    """
    >>> tint("#000000", "#ffffff", 0.2)
    '#cccccc'
    """
    pairs = [(int(colour[n : n + 2], 16), int(paper[n : n + 2], 16)) for n in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def choose_shade(number: int, shade: int) -> str:
    """Of bars: those of one colour differ by their shade, 0 is the strongest."""
    return tint(choose_colour(number), INKS.paper, SHADES[min(shade, len(SHADES) - 1)])


def _pair_schemes() -> dict[str, str]:
    pairs = dict(zip(INKS.series, DARK_INKS.series, strict=True))
    shades = {
        tint(light, INKS.paper, share): tint(dark, DARK_INKS.paper, share)
        for light, dark in pairs.items()
        for share in SHADES
    }
    others = {
        getattr(INKS, name): getattr(DARK_INKS, name) for name in ("paper", "text", "quiet", "line")
    }
    return {**pairs, **shades, **others}


DARK = _pair_schemes()
"""By light colour, the dark one."""


def choose_dash(number: int) -> list[int]:
    return DASHES[(number - 1) // COLOURS % len(DASHES)] if number else DASHES[0]


def choose_shape(number: int) -> str:
    """Colours and shapes repeat at different numbers."""
    return SHAPES[number % len(SHAPES)]


def make_config(inks: Inks = INKS) -> dict[str, Any]:
    """The configuration of every plot, in Vega-Lite's terms."""
    quiet = {"labelColor": inks.text, "titleColor": inks.quiet, "titleFontWeight": "normal"}
    return {
        "background": inks.paper,
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {
            **quiet, "labelFontSize": TEXT_PX, "titleFontSize": TEXT_PX, "gridColor": inks.line,
            "domainColor": inks.line, "tickColor": inks.line, "labelFlush": False,
            "labelOverlap": "greedy", "labelSeparation": 6,
        },
        "legend": {
            **quiet, "labelFontSize": TEXT_PX, "labelLimit": 190, "symbolSize": 70,
            "symbolStrokeWidth": 1.5, "symbolOpacity": 1, "columnPadding": 14, "rowPadding": 3,
            "layout": {"top": {"direction": "vertical", "anchor": "start"}},
        },
        "title": {
            "anchor": "start", "frame": "bounds", "fontSize": 15, "color": inks.text,
            "subtitleFontSize": SMALL_PX, "subtitleColor": inks.quiet, "subtitlePadding": 5,
            "offset": 12,
        },
        "text": {"color": inks.text, "fontSize": TEXT_PX},
        "style": {
            "heading": {"fontWeight": "bold"},
            "note": {"fill": inks.quiet},
            "inside": {"fontSize": SMALL_PX},
        },
    }  # fmt: skip
