"""Charts: well-formed whatever they are given, with everything where it belongs."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch.analysis.quality import assess
from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import summarize
from flopwatch.records.record import Record
from flopwatch.report import charts
from flopwatch.report.charts import (
    Dot,
    Series,
    choose_ratio_ticks,
    choose_ticks,
    draw_dots,
    draw_lines,
    label_ticks,
    spread,
)
from flopwatch.report.figures import Figure, draw_losses, draw_speedups
from flopwatch.report.page import render_page

from .conftest import make_record
from .test_quality import DENSE, trained

finite = st.floats(allow_nan=False, allow_infinity=False)
ratios = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
points = st.lists(st.tuples(finite, finite), min_size=1, max_size=6).map(sorted)


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parse(svg).iter("text")]


def numbers(svg: str) -> list[float]:
    """All coordinates."""
    names = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "points")
    found = [e.attrib[name] for e in parse(svg).iter() for name in names if name in e.attrib]
    return [float(number) for text in found for number in re.split("[ ,]", text) if number]


def line(name: str, *values: tuple[float, float], number: int = 0) -> Series:
    return Series(name=name, number=number, points=values)


def dot(name: str, value: float, limit: float | None = None, is_like: bool = True) -> Dot:
    speedup = Estimate(value=value, low=0.9 * value, high=1.1 * value, samples=9)
    return Dot(name=name, place="size=4", speedup=speedup, limit=limit, is_like=is_like)


@given(st.lists(points, min_size=1, max_size=4), st.none() | finite)
def test_any_lines_stay_on_the_chart(curves: list[list[tuple[float, float]]], top: float) -> None:
    series = [line(f"<{n}>", *curve, number=n) for n, curve in enumerate(curves)]
    svg = draw_lines(series, x_label="x", y_label="y", top=None)
    if svg:
        assert all(0 <= number <= charts.WIDTH for number in numbers(svg))
    cut = draw_lines(series, x_label="x", y_label="y", top=top)
    assert not cut or all(map(math.isfinite, numbers(cut)))


@given(st.lists(st.tuples(ratios, ratios, ratios, st.none() | ratios), min_size=1, max_size=4))
def test_any_dots_stay_on_the_chart(values: list[tuple[float, float, float, float | None]]) -> None:
    dots = [
        Dot(
            name="a",
            place="",
            speedup=Estimate(value=value, low=low, high=high, samples=1),
            limit=limit,
            is_like=True,
        )
        for (low, value, high), limit in ((sorted(v[:3]), v[3]) for v in values)
    ]
    svg = draw_dots(dots, baseline="b")
    assert not svg or all(0 <= number <= charts.WIDTH for number in numbers(svg))


@given(finite, finite)
def test_ticks_are_round_few_and_enclose(one: float, other: float) -> None:
    low, high = sorted([one, other])
    ticks = choose_ticks(low, high)
    if max(abs(low), abs(high)) >= 1e100:
        assert ticks == []
        return
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))
    slack = 1e-8 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    labels = [text for _, text in label_ticks(ticks)]
    assert max(map(len, labels)) <= 13


@given(st.floats(1e-8, 1), st.floats(1, 1e8))
def test_ratio_ticks_enclose_and_have_1(low: float, high: float) -> None:
    ticks = choose_ratio_ticks(low, high)
    assert 0 < ticks[0] <= low * 1.01
    assert ticks[-1] >= high * 0.99
    assert 1 in ticks


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1e-12, 1.0), (1.0, 1e12), (1.0, math.inf)])
def test_ratios_beyond_drawing_have_no_chart(low: float, high: float) -> None:
    assert choose_ratio_ticks(low, high) == []


@given(st.lists(st.floats(0, 100), max_size=6).map(sorted))
def test_labels_keep_their_distance(wanted: list[float]) -> None:
    placed = spread(wanted, 0, 100, 16)
    assert all(b - a >= 16 - 1e-9 for a, b in itertools.pairwise(placed))
    assert all(-1e-9 <= place <= 100 for place in placed)


def test_lines_are_where_they_should_be() -> None:
    svg = draw_lines(
        [line("dense", (0, 4), (10, 2)), line("fast", (0, 4), (5, 3), number=1)],
        x_label="seconds",
        y_label="loss",
    )
    marks = {e.text: e.attrib for e in parse(svg).iter("text")}
    ends = [(float(e.attrib["cx"]), float(e.attrib["cy"])) for e in parse(svg).iter("circle")]
    (fast_x, fast_y), (dense_x, dense_y) = ends  # the baseline is drawn last, on top
    assert dense_x == pytest.approx(float(marks["10"]["x"]), abs=0.1)
    assert fast_x == pytest.approx((float(marks["0"]["x"]) + dense_x) / 2, abs=0.1)
    assert dense_y == pytest.approx(float(marks["2.0"]["y"]) - 4, abs=0.2)
    assert fast_y == pytest.approx(float(marks["3.0"]["y"]) - 4, abs=0.2)
    assert {"seconds", "loss", "dense", "fast"} <= marks.keys()


def test_what_is_above_the_top_is_cut_off() -> None:
    curve = line("a", (0, 100), (1, 3), (2, 2))
    svg = draw_lines([curve], x_label="x", y_label="y", top=3.0)
    (polyline,) = parse(svg).iter("polyline")
    first, *_ = polyline.attrib["points"].split()
    assert first.partition(",")[2] == "26.0"  # the upper edge
    assert "100" not in texts(svg)


def test_a_line_of_many_points_is_thinned_but_keeps_its_end() -> None:
    many = [(float(n), math.sin(n)) for n in range(100_000)]
    svg = draw_lines([line("a", *many)], x_label="x", y_label="y")
    (polyline,) = parse(svg).iter("polyline")
    path = polyline.attrib["points"].split()
    assert len(path) <= charts.MOST_POINTS
    (circle,) = parse(svg).iter("circle")
    assert path[-1] == f"{circle.attrib['cx']},{circle.attrib['cy']}"


def test_sixteen_lines_can_be_told_apart() -> None:
    drawn = [(charts._colour(number), charts._dash(number)) for number in range(16)]
    assert len(set(drawn)) == 16


def test_dots_have_intervals_limits_and_hollow_marks() -> None:
    svg = draw_dots([dot("fast", 1.5, limit=2.0), dot("odd", 1.2, is_like=False)], baseline="dense")
    words = texts(svg)
    assert {"fast", "odd", "1.50x", "1.20x", "dense", "speedup"} <= set(words)
    assert "what arithmetic would give" in words
    assert "not like for like" in words
    kinds = [e.attrib.get("class") for e in parse(svg).iter("line")]
    assert kinds.count("whisker") == 2
    assert kinds.count("limit") == 2  # one in the chart, one that explains it
    titles = [e.text for e in parse(svg).iter("title")]
    assert "fast, size=4: 1.50x [1.35, 1.65], limit 2.00x" in titles


def test_marks_that_are_not_there_are_not_explained() -> None:
    words = texts(draw_dots([dot("fast", 1.5)], baseline="dense"))
    assert "what arithmetic would give" not in words
    assert "not like for like" not in words


def test_several_cases_share_a_lane() -> None:
    svg = draw_dots([dot("a", 1.5), dot("a", 2.0), dot("b", 1.1)], baseline="dense")
    assert texts(svg).count("a") == 1
    assert "1.50x to 2.00x" in texts(svg)
    heights = [e.attrib["cy"] for e in parse(svg).iter("circle")]
    assert len(set(heights)) == 3


def test_a_chart_speaks_to_those_who_cannot_see_it() -> None:
    svg = draw_lines([line("dense", (0, 4), (10, 2))], x_label="seconds", y_label="loss")
    root = parse(svg)
    assert root.attrib["role"] == "img"
    assert root.findtext("title") == "loss against seconds"
    assert root.findtext("desc") == "At the end: dense 2."


def test_all_text_is_escaped() -> None:
    evil = '"><script>alert(1)</script>'
    lines = draw_lines([line(evil, (0, 1), (1, 0))], x_label=evil, y_label=evil)
    dots = draw_dots([dot(evil, 2.0)], baseline=evil)
    for svg in (lines, dots):
        assert "<script" not in svg
        assert parse(svg) is not None


# The page


def compare(**speeds: float) -> list[Record]:
    return [
        make_record(
            id=name, variant=name, baseline="dense", samples_ns={"call": [1e6 / speed] * 20}
        )
        for name, speed in speeds.items()
    ]


def test_speedups_are_drawn_from_three_variants_on() -> None:
    assert draw_speedups(summarize(compare(dense=1, a=2))) is None
    figure = draw_speedups(summarize(compare(dense=1, a=2, b=3)))
    assert isinstance(figure, Figure)
    assert {"2.00x", "3.00x"} <= set(texts(figure.svg))
    assert draw_speedups(summarize(compare(a=2, b=3, c=4))) is None  # no baseline, no speedups


def test_losses_are_drawn_over_time_and_over_tokens() -> None:
    (group,) = assess(summarize([DENSE, trained("fast", 5e6, [5.0, 4.0, 3.0, 2.5])]))
    over_time, over_tokens = draw_losses(group)
    assert over_time is not None
    assert over_tokens is not None
    assert "training time, seconds" in texts(over_time.svg)
    assert "thousand tokens" in texts(over_tokens.svg)
    # Dense ends after 400 steps of 10 ms, fast after 400 of 5 ms.
    ends = [float(e.attrib["cx"]) for e in parse(over_time.svg).iter("circle")]
    zero = next(e for e in parse(over_time.svg).iter("text") if e.text == "0.0")
    left = float(zero.attrib["x"])
    assert (ends[1] - left) / (ends[0] - left) == pytest.approx(2, abs=0.01)


def test_without_a_baseline_nobody_gets_its_colour() -> None:
    (group,) = assess(summarize([trained("fast", 5e6, [5.0, 4.0])]))
    figure = draw_losses(group)[0]
    assert figure is not None
    assert "--c0" not in figure.svg


def test_curves_without_tokens_are_drawn_over_time_only() -> None:
    curves = {"step": [1.0, 2.0], "validation_loss": [2.0, 1.0]}
    (group,) = assess(summarize([trained("dense", 5e6, [], curves=curves)]))
    assert [figure is not None for figure in draw_losses(group)] == [True, False]


def test_the_page_has_charts_beside_its_tables() -> None:
    plain = render_page(compare(dense=1, a=2))
    assert "<svg" not in plain
    assert render_page(compare(dense=1, a=2, b=3)).count("<svg") == 1
    page = render_page([DENSE, trained("fast", 5e6, [5.0, 4.0, 3.0, 2.5])])
    assert page.count("<svg") == 2
    assert "gain at equal loss" in page
    assert "<script" not in page
    assert "http" not in page


def test_the_page_survives_curves_that_no_training_gives() -> None:
    odd = {
        "step": [3.0, -1.0, 3.0],
        "tokens": [0.0, 0.0, 0.0],
        "validation_loss": [1e308, -1e308, 0],
    }
    page = render_page([DENSE, trained("odd", 5e6, [], curves=odd)])
    assert "odd" in page


def test_verdicts_are_coloured_by_their_first_word() -> None:
    dense, a = compare(dense=1, a=2)
    unlike = make_record(
        id="a", variant="a", baseline="dense", samples_ns=a.samples_ns, conditions={"x": "y"}
    )
    page = render_page([dense, unlike])
    assert '<td class="word faster">faster, not like for like</td>' in page


# Colours

# Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour: str) -> list[float]:
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]


def multiply(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def to_lab(rgb: list[float]) -> tuple[float, float, float]:
    white_xyz = ((0.4339, 0.3763, 0.1900), (0.2126, 0.7152, 0.0722), (0.0178, 0.1095, 0.8731))
    x, y, z = (max(0.0, value) ** (1 / 3) for value in multiply(white_xyz, rgb))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_can_be_told_apart(vision: str) -> None:
    """A distance of 2 is just visible side by side; lines apart from each other need much more."""
    light, dark = charts.STYLE.split("@media")
    for scheme in (light, dark):
        colours = re.findall(r"--c\d: (#\w{6})", scheme)
        assert len(colours) == charts.COLOURS + 1
        seen = [to_lab(multiply(VISIONS[vision], linear(colour))) for colour in colours]
        assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 25
