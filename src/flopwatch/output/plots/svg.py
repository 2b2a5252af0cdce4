"""Plots as inline SVG for a page: nothing fetched, in the colours of the page around them.

Marks carry their series and a tip, names their series, for a script that shows tips and switches
series off; without a script all of it can be seen. The colours are ones that colour-blind people
can tell apart, in a light and in a dark form. All text is escaped: names come from records.
"""

from __future__ import annotations

from html import escape

from flopwatch.output.plots.composition import compose
from flopwatch.output.plots.plot import Plot
from flopwatch.output.plots.plot_frame import clean
from flopwatch.output.plots.shapes import Drawing, Mark, Marker, Path, Shape, Text

LIGHT = {
    "c0": "#333333", "c1": "#0d45de", "c2": "#8d1d00", "c3": "#2aaa66", "c4": "#790a83",
    "c5": "#c98a15",
}  # fmt: skip
DARK = {
    "c0": "#dddddd", "c1": "#79a3d8", "c2": "#d35609", "c3": "#0bf17e", "c4": "#b148f6",
    "c5": "#fecf1e",
}  # fmt: skip


def _declare(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


STYLE = f"""
:root {{ --grid: #8884; --faint: #666; {_declare(LIGHT)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --faint: #a0a0a0; {_declare(DARK)} }}
}}
.plot {{ display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }}
.plot text {{ fill: currentColor; }}
.plot .quiet {{ fill: var(--faint); }}
.plot .bold {{ font-weight: 600; }}
.plot .middle {{ text-anchor: middle; }} .plot .end {{ text-anchor: end; }}
.plot path, .plot circle {{ stroke-linejoin: round; fill: none; }}
"""

PAPER = "var(--paper, Canvas)"
INKS = {"text": "currentColor", "quiet": "var(--faint)", "line": "var(--grid)", "paper": PAPER}

OUTLINES = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "triangle": ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
    "diamond": ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    "down": ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)),
    "cross": ((-1, -0.5), (-0.5, -1), (0, -0.5), (0.5, -1), (1, -0.5), (0.5, 0), (1, 0.5),
              (0.5, 1), (0, 0.5), (-0.5, 1), (-1, 0.5), (-0.5, 0)),
    "plus": ((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
             (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
}  # fmt: skip
"""Of markers, in units of their size."""


def draw_svg(plot: Plot) -> str:
    drawing = compose(plot, with_words=False)
    label = escape(f"{clean(plot.title)}. {clean(plot.caption)}")
    return (
        f'<svg class="plot" role="img" aria-label="{label}" '
        f'viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}">{_draw(drawing)}</svg>'
    )


def _draw(drawing: Drawing) -> str:
    return "".join(map(_draw_shape, drawing.shapes))


def _draw_shape(shape: Shape) -> str:
    if isinstance(shape, Mark):
        inside = "".join(map(_draw_shape, shape.shapes))
        tip = f' data-tip="{escape(shape.tip)}"' if shape.tip else ""
        return f'<g class="mark" data-series="{shape.series}"{tip}>{inside}</g>'
    if isinstance(shape, Path):
        return _draw_path(shape)
    return _draw_marker(shape) if isinstance(shape, Marker) else _draw_text(shape)


def _draw_path(path: Path) -> str:
    style = ""
    if path.fill:
        style += f"fill:{_ink(path.fill)};fill-opacity:{path.density:g};"
    if path.stroke:
        style += f"stroke:{_ink(path.stroke)};stroke-width:{path.width:g};"
    if path.dash:
        style += f"stroke-dasharray:{' '.join(f'{size:g}' for size in path.dash)};"
    return f'<path style="{style}" d="{_outline(path.points)}"/>'


def _draw_marker(marker: Marker) -> str:
    ink, size = _ink(marker.ink), marker.size
    is_ring = marker.is_hollow and size > 4
    fill = "none" if is_ring else PAPER if marker.is_hollow else ink
    style = f"fill:{fill};" + (f"stroke:{ink};stroke-width:1.8;" if marker.is_hollow else "")
    if marker.shape == "circle":
        place = f'cx="{marker.x:.1f}" cy="{marker.y:.1f}" r="{size:g}"'
        return f'<circle style="{style}" {place}/>'
    points = tuple((marker.x + a * size, marker.y + b * size) for a, b in OUTLINES[marker.shape])
    return f'<path style="{style}" d="{_outline(points)}Z"/>'


def _draw_text(text: Text) -> str:
    classes = [
        *(["name"] if text.series is not None else []),
        *([text.anchor] if text.anchor != "start" else []),
        *(["quiet"] if text.ink == "quiet" else []),
        *(["bold"] if text.is_bold else []),
    ]
    attributes = f' class="{" ".join(classes)}"' if classes else ""
    attributes += "" if text.series is None else f' data-series="{text.series}"'
    attributes += "" if text.size == 12 else f' font-size="{text.size:g}"'
    return f'<text{attributes} x="{text.x:.1f}" y="{text.y:.1f}">{escape(text.text)}</text>'


def _ink(name: str) -> str:
    return INKS.get(name) or f"var(--{name})"


def _outline(points: tuple[tuple[float, float], ...]) -> str:
    return "M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
