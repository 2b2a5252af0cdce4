"""Plots as files that stand alone: PNG, SVG, PDF, drawn by matplotlib without a display."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.lazy import require
from flopwatch.output.plots.composition import compose
from flopwatch.output.plots.plot import Plot
from flopwatch.output.plots.shapes import Drawing, Mark, Marker, Path, Shape, Text
from flopwatch.output.plots.svg import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAKER = "drawn by flopwatch"
"""Stands in every file, by which a plot of ours is known."""
METADATA = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}
"""By ending: the field for it. These are the formats that can be written."""
DPI = 100
SCALE = 2
"""A PNG has so many dots for every pixel."""
POINTS = 72 / DPI
"""A pixel, in the unit of fonts and lines."""
FONT_SCALE = 0.92
"""The bundled font is wider than those of browsers, for which places are chosen."""
INKS = {"text": "#1a1a1a", "quiet": "#666666", "line": "#d8d8d8", "paper": "#ffffff", **LIGHT}
MARKERS = {
    "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v", "cross": "X",
    "plus": "P",
}  # fmt: skip
ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def check_path(path: FilePath) -> None:
    """Refuse what cannot be written, and what would be lost."""
    if path.suffix.lower() not in METADATA:
        raise UsageError(
            f"{path} does not end in {', '.join(METADATA)}; these are what plots are written as"
        )
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refuse(path, error) from None
    if content and MAKER.encode() not in content:
        raise UsageError(f"{path} is there and no plot of flopwatch's; choose another name")


def draw_files(plots: Sequence[Plot], path: FilePath | None = None) -> list[FilePath]:
    """Write each plot, to names of their own without a path, numbered where names are the same;
    none, if one of the files cannot be written."""
    wanted = [path or FilePath(f"{_find_file_word(p.subject)}-{p.name}.png") for p in plots]
    seen: dict[FilePath, int] = {}
    files = []
    for file in wanted:
        seen[file] = seen.get(file, 0) + 1
        is_alone = wanted.count(file) == 1
        files.append(file if is_alone else file.with_stem(f"{file.stem}-{seen[file]}"))
    for file in files:
        check_path(file)
    for plot, file in zip(plots, files, strict=True):
        draw_file(plot, file)
    return files


def _find_file_word(subject: str) -> str:
    """The suite's name, as a name of a file: it comes from a record."""
    suite = subject.partition(" ")[0]
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in suite)[:60] or "results"


def draw_file(plot: Plot, path: FilePath) -> None:
    """Write the plot in the format that the path's ending says."""
    check_path(path)
    content = draw_bytes(plot, path.suffix.lower())
    try:
        path.write_bytes(content)
    except OSError as error:
        raise _refuse(path, error) from None


def draw_bytes(plot: Plot, ending: str) -> bytes:
    require("matplotlib")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = compose(plot, with_words=True)
    # The user's own settings and styles have no say; a name in a script that the bundled font
    # lacks gives boxes, and no warnings.
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams["font.family"] = "DejaVu Sans"
        matplotlib.rcParams["svg.hashsalt"] = "flopwatch"  # the same plot is the same file
        matplotlib.rcParams["pdf.fonttype"] = 42
        figure = Figure(figsize=(drawing.width / DPI, drawing.height / DPI), facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        _draw(drawing, axes)
        buffer = io.BytesIO()
        metadata: dict[str, Any] = {METADATA[ending]: MAKER, "Title": plot.title}
        metadata |= (
            {} if ending == ".png" else {("Date" if ending == ".svg" else "CreationDate"): None}
        )
        figure.savefig(buffer, format=ending[1:], dpi=DPI * SCALE, metadata=metadata)
    return buffer.getvalue()


def _draw(drawing: Drawing, axes: Axes) -> None:
    flat: list[Path | Marker | Text] = []
    for shape in drawing.shapes:
        flat += shape.shapes if isinstance(shape, Mark) else [shape]
    for order, shape in enumerate(flat):
        _draw_shape(shape, axes, order)


def _draw_shape(shape: Shape, axes: Axes, order: int) -> None:
    """Later ones lie on top."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Polygon

    if isinstance(shape, Path):
        xs, ys = zip(*shape.points, strict=True)
        if shape.fill:
            axes.add_patch(
                Polygon(
                    shape.points, closed=True, facecolor=INKS[shape.fill], alpha=shape.density,
                    edgecolor="none", zorder=order,
                )
            )  # fmt: skip
        if shape.stroke:
            gaps = (0, tuple(size / shape.width for size in shape.dash))
            axes.add_line(
                Line2D(
                    xs, ys, color=INKS[shape.stroke], linewidth=shape.width * POINTS,
                    linestyle=gaps if shape.dash else "-", solid_joinstyle="round", zorder=order,
                )
            )  # fmt: skip
    elif isinstance(shape, Marker):
        _draw_marker(shape, axes, order)
    elif isinstance(shape, Text):
        axes.text(
            shape.x, shape.y, shape.text,
            color=INKS[shape.ink], fontsize=shape.size * POINTS * FONT_SCALE,
            fontweight="bold" if shape.is_bold else "normal", ha=ANCHORS[shape.anchor],
            va="baseline", parse_math=False, zorder=order,
        )  # fmt: skip


def _draw_marker(marker: Marker, axes: Axes, order: int) -> None:
    from matplotlib.lines import Line2D

    ink = INKS[marker.ink]
    is_ring = marker.is_hollow and marker.size > 4
    axes.add_line(
        Line2D(
            [marker.x], [marker.y], marker=MARKERS[marker.shape], linestyle="none",
            markersize=2 * marker.size * POINTS, markeredgecolor=ink,
            markerfacecolor="none" if is_ring else "white" if marker.is_hollow else ink,
            markeredgewidth=1.8 * POINTS if marker.is_hollow else 0, zorder=order,
        )
    )  # fmt: skip


def _refuse(path: FilePath, error: OSError) -> FlopwatchError:
    return FlopwatchError(f"{path} cannot be written ({error.strerror}); choose another")
