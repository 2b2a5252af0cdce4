"""Where a plot's parts go: its margins, its legend, and the place of every value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import wrap

from flopwatch.output.plots.plot import Plot

WIDTH = 600.0
PLOT_HEIGHT = 250.0
LINE = 16.0
"""Between lines of text."""
TEXT_PX = 12.0
WIDTHS = {"ijlI.,:;'|! ": 0.31, "tfr()[]/-": 0.39, "w=+<>~": 0.8, "mMW%@": 0.92}
"""Of characters, in heights of the font, generously: those of a wide one."""
LOWER, UPPER, OTHER = 0.58, 0.66, 1.0
LONGEST_NAME = 32
SWATCH = 22.0
"""What a sample of a series' style takes beside its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    plot: Plot
    left: float
    right: float
    top: float
    bottom: float
    height: float
    """Of the whole drawing."""
    title: Sequence[str]
    """Lines above; none where the page around it says them."""
    legend: Sequence[Sequence[int]]
    """Rows of series."""
    caption: Sequence[str]
    """Lines below."""

    def x(self, value: float) -> float:
        return self.left + self.plot.x.place(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom + self.plot.y.place(value) * (self.top - self.bottom)


def make_frame(plot: Plot, *, with_words: bool) -> Frame:
    title = [*wrap(clean(plot.title), 72), *wrap(clean(plot.subject), 88)]
    caption = [*wrap(clean(plot.caption), 96), *wrap(clean(plot.conditions), 96)]
    title, caption = (title, caption) if with_words else ([], [])
    legend = _lay_legend(plot) if plot.names == "top" else []
    has_top = bool(plot.y.label) or any(ref.text_at == "top" for ref in plot.references)
    has_top |= bool(plot.spans)
    top = 8 + LINE * (len(title) + len(legend) + has_top) + (6 if title else 0)
    inside = _measure_height(plot)
    below = 42 + LINE * (len(_list_keys(plot)) + len(caption)) + (8 if caption else 0)
    return Frame(
        plot=plot,
        left=_measure(tick.text for tick in plot.y.ticks) + 18,
        right=WIDTH - _measure_right(plot),
        top=top,
        bottom=top + inside,
        height=top + inside + below,
        title=title,
        legend=legend,
        caption=caption,
    )


def _list_keys(plot: Plot) -> list[str]:
    return [key.text for key in plot.keys]


def _measure_height(plot: Plot) -> float:
    if plot.lanes:
        return plot.lane_px * plot.lanes
    names = len(plot.series) if plot.names == "ends" else 0
    return max(PLOT_HEIGHT, LINE * names)


def _measure_right(plot: Plot) -> float:
    if plot.names == "ends":
        return _measure(one.name for one in plot.series) + SWATCH + 14
    last = plot.x.ticks[-1].text if plot.x.ticks else ""
    room = max(16.0, measure(last) / 2 + 4)
    return max(room, _measure(note.text for note in plot.notes) + 18)


def _measure(texts: Iterable[str]) -> float:
    return max((measure(shorten(text)) for text in texts), default=0.0)


def measure(text: str, size: float = TEXT_PX) -> float:
    """Its width in pixels, as nobody knows which font will be there."""
    return size * sum(map(_measure_character, text))


@cache
def _measure_character(character: str) -> float:
    known = [width for characters, width in WIDTHS.items() if character in characters]
    if known or not character.isascii():
        return known[0] if known else OTHER
    return UPPER if character.isupper() else LOWER


def measure_name(name: str) -> float:
    """With its swatch, in a row of names."""
    return SWATCH + measure(shorten(name)) + 12


def _lay_legend(plot: Plot) -> list[list[int]]:
    """As many names in a row as it has room for."""
    rows: list[list[int]] = [[]]
    used = 0.0
    for position, one in enumerate(plot.series):
        width = measure_name(one.name)
        if rows[-1] and used + width > WIDTH - 16:
            rows.append([])
            used = 0.0
        rows[-1].append(position)
        used += width
    return rows


def shorten(name: str) -> str:
    """Long names lose their middle: variants often differ at the end.

    >>> shorten("decoder:hidden_size=1024:layers=24")
    'decoder:hidden_…e=1024:layers=24'
    """
    name = clean(name)
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def clean(text: str) -> str:
    """Without what no font has, and XML does not allow."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def spread(wanted: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Places near the wanted ones, in ascending order, that keep their distance.

    >>> spread([10, 11, 50], 0, 100, 16)
    [10, 26, 50]
    >>> spread([90, 95], 0, 100, 16)
    [84, 100]
    """
    placed: list[float] = []
    for value in wanted:
        placed.append(max(value, low if not placed else placed[-1] + gap))
    limit = high
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - gap
    return placed
