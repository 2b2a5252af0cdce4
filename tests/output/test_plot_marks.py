"""What marks and labels of plots tell: what is not known, which row it is, whose sample."""

from __future__ import annotations

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.output.plots import Plot
from flopwatch.output.plots.composition import compose
from flopwatch.output.plots.plot_catalog import make_plots
from flopwatch.output.plots.plot_frame import shorten
from flopwatch.output.plots.shapes import Mark, Marker, Path, Text
from flopwatch.output.plots.svg import STYLE
from flopwatch.output.tables import divide
from flopwatch.records.published import load
from tests.plot_tools import SPEEDUPS, compare, draw

FEW = {"rounds": [0, 1, 2], "calls_per_sample": [1] * 3}
MS = 1e6


def draw_published(name: str, kind: str) -> list[Plot]:
    return list(make_plots(kind, divide(summarize(load(name)))))


def test_a_speedup_without_an_interval_does_not_look_precise() -> None:
    known = compare({"dense": 1, "fast": 2}, "one", params={"size": 4})
    unknown = compare(
        {"dense": 1, "fast": 2},
        "two",
        params={"size": 8},
        samples_ns={"call": [10 * MS] * 3},
        **FEW,
    )
    (plot,) = draw("speedups", [*known, *unknown])
    (series,) = plot.series
    assert [point.is_unsure for point in series.points] == [False, True]
    assert [key.mark for key in plot.keys] == ["unsure"]
    assert "Of 1 of 2, how far they may be off is not known." in plot.caption
    marks = [s for s in compose(plot, with_words=False).shapes if isinstance(s, Mark) and s.tip]
    dashed = [any(isinstance(s, Path) and s.dash for s in mark.shapes) for mark in marks]
    assert sorted(dashed) == [False, True]


def test_published_speedups_are_all_unsure_and_those_not_comparable_are_still_named() -> None:
    (plot,) = draw_published("dyad", "speedups")
    points = [point for one in plot.series for point in one.points]
    assert all(point.is_unsure for point in points)
    assert {point.is_hollow for point in points} == {True, False}
    assert {"hollow", "unsure"} <= {key.mark for key in plot.keys}
    assert "How far they may be off is not known." in plot.caption


@pytest.mark.parametrize("kind", ["samples", "distribution"])
def test_small_marks_differ_by_more_than_colour(kind: str) -> None:
    times = {"dense": 10, "a": 11, "b": 12, "c": 13}
    records = [
        r for v, n in times.items()
        for r in compare({v: 1}, "g", samples_ns={"call": [n * MS, (n + 0.5) * MS] * 10})
    ]  # fmt: skip
    plot, *_ = draw(kind, records)
    marks = [s for s in compose(plot, with_words=False).shapes if isinstance(s, Mark)]
    shapes = {
        mark.series: {shape.shape for shape in mark.shapes if isinstance(shape, Marker)}
        for mark in marks
        if mark.tip and any(isinstance(shape, Marker) for shape in mark.shapes)
    }
    assert len(shapes) == len(times)
    assert len({shape for found in shapes.values() for shape in found}) == len(times)


def test_rows_of_the_published_breakdown_can_be_told_apart() -> None:
    plots = draw_published("mosaic", "breakdown")
    assert plots
    for plot in plots:
        shown = [shorten(tick.text) for tick in plot.y.ticks]
        assert len(set(shown)) == len(shown)
        assert not any("…" in text for text in shown)
        (heading,) = plot.headings
        assert "seq_len, " in heading.text


def test_what_all_lanes_share_is_told_once() -> None:
    records = [
        record
        for size in (1, 2)
        for record in compare(
            {"dense": 1, "a": 2},
            str(size),
            params={"a_long_name_of_an_axis": size, "another_axis_of_it": 7, "third": size},
        )
    ]
    failed = compare(
        {"dense": 1}, "3", params={"a_long_name_of_an_axis": 1, "another_axis_of_it": 8, "third": 1}
    )
    (plot,) = draw("speedups", [*records, *failed])
    assert [tick.text for tick in plot.y.ticks] == ["1, 1", "2, 2"]
    (heading,) = plot.headings
    assert heading.text == "a_long_name_of_an_axis, third; another_axis_of_it=7"


def test_headings_lie_on_paper() -> None:
    (plot,) = draw("speedups", SPEEDUPS)
    shapes = compose(plot, with_words=False).shapes
    texts = {heading.text for heading in plot.headings}
    found = [p for p, shape in enumerate(shapes) if isinstance(shape, Text) and shape.text in texts]
    assert len(found) == len(texts) > 0
    lines = [p for p, shape in enumerate(shapes) if isinstance(shape, Path) and shape.dash]
    for place in found:
        paper, text = shapes[place - 1], shapes[place]
        assert isinstance(paper, Path)
        assert isinstance(text, Text)
        assert paper.fill == "paper"
        assert min(x for x, _ in paper.points) < text.x < max(x for x, _ in paper.points)
        assert place > max(lines)  # on top of them


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [("switchback", "parts", 29), ("dyad", "parts", 1), ("mosaic", "breakdown", 3)],
)
def test_published_means_are_not_called_medians(name: str, kind: str, number: int) -> None:
    plots = draw_published(name, kind)
    assert len(plots) == number
    for plot in plots:
        marks = [s for s in compose(plot, with_words=False).shapes if isinstance(s, Mark) and s.tip]
        assert marks
        assert "median" not in plot.caption.lower()
        assert "mean of whole runs" in plot.caption


def test_plots_of_a_page_are_no_wider_than_a_phone() -> None:
    (rule,) = (line for line in STYLE.splitlines() if line.startswith(".plot {"))
    assert "width: 100%" in rule
    assert "min-width" not in rule
