"""What a drawing is made of: lines, markers and texts at their places, in pixels from the top left
corner. Every drawer knows these, and nothing of what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Anchor = Literal["start", "middle", "end"]

COLOURS = 5
"""Besides the first, c0, which is for the baseline."""
DASHES = ((), (7.0, 3.0), (2.0, 3.0))
MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "plus")
SHADES = (0.58, 0.42, 0.3, 0.18, 0.07)
"""How dense the fill of a bar is: thin enough for text on top, in the light and in the dark."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    points: tuple[tuple[float, float], ...]
    stroke: str | None
    """An ink: text, quiet, line, paper, or c0 to c5."""
    fill: str | None = None
    density: float = 1.0
    """Of the fill."""
    width: float = 1.0
    dash: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Marker:
    x: float
    y: float
    shape: str
    """One of MARKERS."""
    ink: str
    size: float = 3.5
    """Half its width."""
    is_hollow: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    x: float
    y: float
    """Of its base line."""
    text: str
    anchor: Anchor = "start"
    ink: str = "text"
    size: float = 12.0
    is_bold: bool = False
    series: int | None = None
    """Whose name it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Shapes that stand for one value of a series, or for all of it."""

    shapes: tuple[Path | Marker | Text, ...]
    series: int
    tip: str = ""
    """Of one value; none where it is all of a series."""


Shape = Path | Marker | Text | Mark


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    width: float
    height: float
    shapes: tuple[Shape, ...]


def choose_ink(number: int) -> str:
    return f"c{0 if number == 0 else (number - 1) % COLOURS + 1}"


def choose_dash(number: int) -> tuple[float, ...]:
    return DASHES[(number - 1) // COLOURS % len(DASHES)] if number else ()


def choose_marker(number: int) -> str:
    """Colours and markers come round at different numbers."""
    return MARKERS[number % len(MARKERS)]
