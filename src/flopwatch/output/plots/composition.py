"""A plot as shapes: what every drawer draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from flopwatch.output.plots.plot import Bar, Key, Plot, Point, Reference, Series
from flopwatch.output.plots.plot_frame import (
    LINE,
    SWATCH,
    WIDTH,
    Frame,
    clean,
    make_frame,
    measure,
    measure_name,
    shorten,
    spread,
)
from flopwatch.output.plots.shapes import (
    SHADES,
    Anchor,
    Drawing,
    Mark,
    Marker,
    Path,
    Shape,
    Text,
    choose_dash,
    choose_ink,
    choose_marker,
)

LIMIT_PX = 6.0
"""Half the length of the mark that shows a limit."""
SMALL_PX = 2.2
"""Half the width of a point that is one of many; its shape can still be told."""
UNSURE_PX = (5.0, 13.0)
"""From where to where, on both sides of a point, dots say that its interval is not known."""


def compose(plot: Plot, *, with_words: bool) -> Drawing:
    """`with_words` draws title and caption too, for a file that stands alone."""
    frame = make_frame(plot, with_words=with_words)
    shapes: list[Shape] = [
        *_draw_words(frame),
        *_draw_spans(frame),
        *_draw_axes(frame),
        *_draw_references(frame),
        *_draw_all_series(frame),
        *_draw_own_references(frame),
        *_draw_names(frame),
        *_draw_lane_texts(frame),
        *_draw_keys(frame),
    ]
    return Drawing(width=WIDTH, height=math.ceil(frame.height), shapes=tuple(shapes))


def _draw_words(frame: Frame) -> Iterator[Shape]:
    for number, line in enumerate(frame.title):
        is_title = line in frame.plot.title or number == 0
        yield Text(
            x=8,
            y=18 + LINE * number,
            text=line,
            is_bold=is_title,
            ink="text" if is_title else "quiet",
            size=13 if is_title else 11,
        )
    first = frame.height - LINE * len(frame.caption) + 4
    for number, line in enumerate(frame.caption):
        yield Text(x=8, y=first + LINE * number, text=line, ink="quiet", size=10.5)


def _draw_spans(frame: Frame) -> Iterator[Shape]:
    for span in frame.plot.spans:
        start, end = frame.x(span.start), frame.x(span.end)
        box = _box(start, end, frame.top, frame.bottom)
        yield Path(points=box, stroke=None, fill="quiet", density=0.15)
        yield Text(x=start + 2, y=frame.top - 5, text=clean(span.text), ink="quiet", size=11)


def _draw_axes(frame: Frame) -> Iterator[Shape]:
    plot = frame.plot
    if not plot.lanes:
        for tick in plot.y.ticks:
            y = frame.y(tick.value)
            yield Path(points=((frame.left, y), (frame.right, y)), stroke="line")
            yield Text(x=frame.left - 6, y=y + 4, text=tick.text, anchor="end")
    shown = _space((frame.x(t.value), t.text) for t in plot.x.ticks)
    for x, text in shown:
        top = frame.top if plot.lanes or plot.x.is_log else frame.bottom + 4
        yield Path(points=((x, top), (x, frame.bottom)), stroke="line")
        yield Text(x=x, y=frame.bottom + 16, text=text, anchor="middle")
    yield Path(points=((frame.left, frame.bottom), (frame.right, frame.bottom)), stroke="text")
    yield Text(
        x=frame.right, y=frame.bottom + 34, text=clean(plot.x.label), anchor="end", ink="quiet"
    )
    if plot.y.label:
        x = 8.0 if not plot.spans else frame.right
        anchor: Anchor = "start" if x == 8 else "end"
        label = clean(plot.y.label)
        yield Text(x=x, y=frame.top - 8, text=label, anchor=anchor, ink="quiet")


def _space(ticks: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    """Without the labels that would touch the one before."""
    spaced: list[tuple[float, str]] = []
    free = -math.inf
    for place, text in ticks:
        half = measure(text) / 2 + 2
        spaced.append((place, text if place - half >= free else ""))
        free = place + half if spaced[-1][1] else free
    return spaced


def _draw_references(frame: Frame) -> Iterator[Shape]:
    plot = frame.plot
    ends: list[tuple[float, Reference]] = []
    for reference in (one for one in plot.references if one.series is None):
        points = tuple((frame.x(x), frame.y(y)) for x, y in reference.points)
        yield Path(points=points, stroke="text", width=1.2, dash=(5, 3))
        text = clean(reference.text)
        if reference.text_at == "top":
            x, half = points[0][0], measure(text) / 2
            x = min(max(x, 8 + half), WIDTH - 8 - half)
            yield Text(x=x, y=frame.top - 6, text=text, anchor="middle", ink="quiet")
        elif reference.text_at == "start":
            x, y = points[0]
            yield Text(x=x + 14, y=min(y + 12, frame.bottom - 4), text=text, ink="quiet", size=11)
        else:
            ends.append((points[-1][1] - 5, reference))
    ends.sort(key=lambda end: end[0])
    heights = spread([y for y, _ in ends], frame.top + 8, frame.bottom - 4, 13)
    for (_, reference), y in zip(ends, heights, strict=True):
        text = clean(reference.text)
        yield Text(x=frame.right - 2, y=y, text=text, anchor="end", ink="quiet", size=11)


def _draw_own_references(frame: Frame) -> Iterator[Shape]:
    """Those that belong to series: on top of them."""
    for reference in frame.plot.references:
        if reference.series is not None:
            one = frame.plot.series[reference.series]
            points = tuple((frame.x(x), frame.y(y)) for x, y in reference.points)
            line = Path(points=points, stroke=choose_ink(one.number), width=2)
            yield Mark(shapes=(line,), series=reference.series, tip=clean(reference.text))


def _draw_all_series(frame: Frame) -> Iterator[Shape]:
    """The first one on top; what is large below what is small."""
    numbered = list(enumerate(frame.plot.series))[::-1]
    for position, one in numbered:
        yield from _draw_areas(frame, position, one)
    for position, one in numbered:
        if one.is_joined and len(one.points) > 1:
            line = Path(
                points=tuple((frame.x(p.x), frame.y(p.y)) for p in one.points),
                stroke=choose_ink(one.number),
                width=2,
                dash=choose_dash(one.number),
            )
            yield Mark(shapes=(line,), series=position)
    for position, one in numbered:
        for point in one.points:
            shapes = tuple(_draw_point(frame, one, point))
            yield Mark(shapes=shapes, series=position, tip=clean(point.tip or one.name))


def _draw_areas(frame: Frame, position: int, one: Series) -> Iterator[Shape]:
    ink = choose_ink(one.number)
    if one.outline:
        points = tuple((frame.x(x), frame.y(y)) for x, y in one.outline)
        area = Path(points=points, stroke=ink, fill=ink, density=0.25)
        yield Mark(shapes=(area,), series=position)
    known = [p for p in one.points if p.low is not None and p.high is not None]
    if one.intervals == "band" and len(known) > 1:
        upper = [(frame.x(p.x), frame.y(p.high or p.y)) for p in known]
        lower = [(frame.x(p.x), frame.y(p.low or p.y)) for p in known]
        band = Path(points=(*upper, *lower[::-1]), stroke=None, fill=ink, density=0.15)
        yield Mark(shapes=(band,), series=position)
    for bar in one.bars:
        shapes = tuple(_draw_bar(frame, one, bar))
        yield Mark(shapes=shapes, series=position, tip=clean(bar.tip))


def _draw_bar(frame: Frame, one: Series, bar: Bar) -> Iterator[Path | Text]:
    ink, middle = choose_ink(one.number), frame.y(bar.y)
    half = frame.plot.bar_px / 2
    start, end = frame.x(bar.start), frame.x(bar.end)
    box = _box(start, end, middle - half, middle + half)
    yield Path(points=box, stroke=ink, fill=ink, density=SHADES[one.shade % len(SHADES)])
    text = clean(bar.text)
    if text and measure(text, 11) + 4 < end - start:
        yield Text(x=(start + end) / 2, y=middle + 4, text=text, anchor="middle", size=11)


def _draw_point(frame: Frame, one: Series, point: Point) -> Iterator[Path | Marker]:
    ink = choose_ink(one.number)
    x, y = frame.x(point.x), frame.y(point.y)
    if point.low is not None and point.high is not None and one.intervals != "band":
        if one.intervals == "x":
            ends = ((frame.x(point.low), y), (frame.x(point.high), y))
        else:
            ends = ((x, frame.y(point.low)), (x, frame.y(point.high)))
        yield Path(points=ends, stroke=ink, width=2)
    if point.limit is not None:
        yield _limit_mark(frame.x(point.limit), y)
    if point.is_ringed:
        yield _ring(x, y, ink)
    number = one.number if one.marker is None else one.marker
    if point.is_unsure:
        yield from _open_ends(x, y, ink)
    yield Marker(
        x=x,
        y=y,
        shape=choose_marker(number),
        ink=ink,
        size=SMALL_PX if one.is_small else 3.5,
        is_hollow=point.is_hollow,
    )


def _limit_mark(x: float, y: float) -> Path:
    return Path(points=((x, y - LIMIT_PX), (x, y + LIMIT_PX)), stroke="text", width=2)


def _open_ends(x: float, y: float, ink: str) -> Iterator[Path]:
    """An interval of which nobody knows where it ends."""
    for side in (-1, 1):
        ends = ((x + side * UNSURE_PX[0], y), (x + side * UNSURE_PX[1], y))
        yield Path(points=ends, stroke=ink, width=2, dash=(2, 3))


def _ring(x: float, y: float, ink: str, size: float = 8.0) -> Marker:
    return Marker(x=x, y=y, shape="circle", ink=ink, size=size, is_hollow=True)


def _draw_names(frame: Frame) -> Iterator[Shape]:
    plot = frame.plot
    if plot.names == "ends":
        yield from _draw_names_at_ends(frame)
    first = 12 + LINE * len(frame.title) + (6 if frame.title else 0)
    for row, positions in enumerate(frame.legend):
        x, y = 8.0, first + LINE * row
        for position in positions:
            one = plot.series[position]
            yield Mark(shapes=tuple(_swatch(one, x, y)), series=position)
            yield Text(x=x + SWATCH, y=y + 4, text=shorten(one.name), series=position)
            x += measure_name(one.name)


def _draw_names_at_ends(frame: Frame) -> Iterator[Shape]:
    ends = sorted(
        (frame.y(one.points[-1].y if one.end is None else one.end), position)
        for position, one in enumerate(frame.plot.series)
    )
    heights = spread([y for y, _ in ends], frame.top, frame.bottom, LINE)
    for (_, position), y in zip(ends, heights, strict=True):
        one, x = frame.plot.series[position], frame.right + 8
        yield Mark(shapes=tuple(_swatch(one, x, y)), series=position)
        yield Text(x=x + SWATCH, y=y + 4, text=shorten(one.name), series=position)


def _swatch(one: Series, x: float, y: float) -> Iterator[Path | Marker]:
    """A sample of how a series is drawn."""
    ink = choose_ink(one.number)
    if one.bars or one.outline:
        density = SHADES[one.shade % len(SHADES)]
        yield Path(points=_box(x, x + 16, y - 5, y + 5), stroke=ink, fill=ink, density=density)
        return
    if one.is_joined:
        dash = choose_dash(one.number)
        yield Path(points=((x, y), (x + 16, y)), stroke=ink, width=2, dash=dash)
    number = one.number if one.marker is None else one.marker
    yield Marker(x=x + 8, y=y, shape=choose_marker(number), ink=ink)


def _draw_lane_texts(frame: Frame) -> Iterator[Shape]:
    plot = frame.plot
    for heading in plot.headings:
        y, text = frame.y(heading.y) + 5, clean(heading.text)
        # Lines of the axis would run through the words. Bold ones are wider.
        box = _box(6, 12 + 1.1 * measure(text, 11), y - 11, y + 3)
        yield Path(points=box, stroke=None, fill="paper")
        yield Text(x=8, y=y, text=text, size=11, ink="quiet", is_bold=True)
    if plot.lanes:
        for tick in plot.y.ticks:
            yield Text(
                x=frame.left - 10,
                y=frame.y(tick.value) + 4,
                text=shorten(tick.text),
                anchor="end",
                series=tick.series,
            )
    for note in plot.notes:
        yield Text(x=frame.right + 12, y=frame.y(note.y) + 4, text=clean(note.text))


def _crossing_mark(x: float, y: float) -> Path:
    across = ((x - 8, y - 4), (x, y - 4), (x, y + 5), (x, y - 4), (x + 8, y - 4))
    return Path(points=across, stroke="text", width=2)


def _unsure_mark(x: float, y: float) -> list[Path | Marker]:
    return [*_open_ends(x, y, "c1"), Marker(x=x, y=y, shape="circle", ink="c1")]


KEYS: dict[str, Callable[[float, float], list[Path | Marker]]] = {
    "limit": lambda x, y: [_limit_mark(x, y)],
    "hollow": lambda x, y: [Marker(x=x, y=y, shape="circle", ink="c1", is_hollow=True)],
    "unsure": _unsure_mark,
    "ring": lambda x, y: [_ring(x, y, "text", 5.5)],
    "crossing": lambda x, y: [_crossing_mark(x, y)],
}
"""How each mark is shown beside what it means."""


def _draw_keys(frame: Frame) -> Iterator[Shape]:
    for number, key in enumerate(frame.plot.keys):
        y = frame.bottom + 46 + LINE * number
        yield from _draw_key(key, y)


def _draw_key(key: Key, y: float) -> Iterator[Shape]:
    yield from KEYS[key.mark](18, y)
    yield Text(x=34, y=y + 4, text=clean(key.text), ink="quiet", size=11)


def _box(left: float, right: float, top: float, bottom: float) -> tuple[tuple[float, float], ...]:
    return ((left, top), (right, top), (right, bottom), (left, bottom), (left, top))
