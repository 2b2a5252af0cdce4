"""Both drawers on every plot: well-formed whatever they are given, nothing outside, no text on
another, and everything a page's script needs."""

from __future__ import annotations

import itertools
import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch.analysis.summary import summarize
from flopwatch.output.page import render_page
from flopwatch.output.plots import KINDS, Plot, choose_plots
from flopwatch.output.plots.composition import compose
from flopwatch.output.plots.matplotlib_drawing import FONT_SCALE, MAKER, draw_bytes, draw_file
from flopwatch.output.plots.plot_frame import measure
from flopwatch.output.plots.shapes import COLOURS, Mark, Marker, Shape, Text
from flopwatch.output.plots.svg import DARK, LIGHT, STYLE, draw_svg
from flopwatch.records.record import PhaseMemory
from tests.conftest import make_record
from tests.plot_tools import GALLERY, SPEEDUPS, compare, draw

PLOTS = {
    f"{name}-{place}": plot
    for name in GALLERY
    for place, plot in enumerate(draw(name))
}  # fmt: skip
EVIL = '"><script>alert(1)</script>&\x00$x_1$'
every_plot = pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS.keys())


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def coordinates(svg: str) -> list[tuple[float, float]]:
    found = []
    for element in parse(svg).iter():
        if "d" in element.attrib:
            pairs = re.findall(r"(-?[\d.]+),(-?[\d.]+)", element.attrib["d"])
            found += [(float(x), float(y)) for x, y in pairs]
        for x, y in (("x", "y"), ("cx", "cy")):
            if x in element.attrib:
                found.append((float(element.attrib[x]), float(element.attrib[y])))
    return found


def flatten(shapes: tuple[Shape, ...]) -> list[Shape]:
    return [inner for s in shapes for inner in (s.shapes if isinstance(s, Mark) else (s,))]


def box(text: Text) -> tuple[float, float, float, float]:
    width = measure(text.text, text.size)
    left = text.x - {"start": 0, "middle": width / 2, "end": width}[text.anchor]
    return left, left + width, text.y - 0.7 * text.size, text.y


def overlap(one: Text, other: Text) -> bool:
    a, b = box(one), box(other)
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


@every_plot
def test_a_plot_is_well_formed_and_stays_inside(plot: Plot) -> None:
    svg = draw_svg(plot)
    root = parse(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    places = coordinates(svg)
    assert len(places) > 10
    assert all(-1 <= x <= width + 1 and -1 <= y <= height + 1 for x, y in places)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"].startswith(plot.title)


@every_plot
@pytest.mark.parametrize("with_words", [True, False])
def test_no_text_lies_on_another_or_leaves_the_plot(plot: Plot, with_words: bool) -> None:
    drawing = compose(plot, with_words=with_words)
    texts = [s for s in flatten(drawing.shapes) if isinstance(s, Text) and s.text]
    assert [(a.text, b.text) for a, b in itertools.combinations(texts, 2) if overlap(a, b)] == []
    for text in texts:
        left, right, top, bottom = box(text)
        assert left >= 0, text
        assert right <= drawing.width, text
        assert 0 <= top < bottom <= drawing.height, text


@every_plot
def test_marks_say_their_series_and_names_whose_they_are(plot: Plot) -> None:
    root = parse(draw_svg(plot))
    marks = [e for e in root.iter() if e.attrib.get("class") == "mark"]
    numbers = {int(e.attrib["data-series"]) for e in marks if e.attrib.get("data-tip")}
    assert numbers == set(range(len(plot.series)))
    names = {
        int(e.attrib["data-series"])
        for e in root.iter("text")
        if "name" in e.attrib.get("class", "").split()
    }
    assert names == numbers


def test_all_text_is_escaped_and_nothing_of_it_is_lost_on_the_way() -> None:
    records = [
        replace(r, variant=r.variant.replace("fast", EVIL), suite=EVIL, params={EVIL: r.group_id})
        for r in SPEEDUPS
    ]
    (plot,) = draw("speedups", records)
    svg = draw_svg(plot)
    assert "<script" not in svg
    tips = [e.attrib["data-tip"] for e in parse(svg).iter() if "data-tip" in e.attrib]
    assert any(tip.startswith('"><script>alert(1)</script>&\ufffd$x_1$') for tip in tips)
    assert b"<script" not in draw_bytes(plot, ".svg")
    assert draw_bytes(plot, ".png")


def test_names_in_any_script_are_drawn_without_a_word() -> None:
    (plot,) = draw("speedups", compare({"dense": 1, "变体": 2, "🚀": 3}))
    assert "变体" in draw_svg(plot)
    assert draw_bytes(plot, ".png").startswith(b"\x89PNG")


# What no machine gives

times = st.floats(min_value=1e-120, max_value=1e120)
sizes = st.integers(min_value=0, max_value=2**62)


def draw_all(samples: list[float], flops: float, moved: float, size: int) -> dict[str, list[str]]:
    """By kind, every plot of two variants with these numbers."""
    records = [
        make_record(
            case_id=variant,
            variant=variant,
            baseline="a",
            samples_ns={"forward": numbers, "backward": numbers[::-1]},
            rounds=list(range(12)),
            calls_per_sample=[1] * 12,
            warmup_samples=2,
            flops={"forward": {"float32": flops}},
            bytes={"forward": moved},
            facts={"tokens": flops},
            curves={"step": numbers, "tokens": numbers, "validation_loss": numbers[::-1]},
            memory={"forward": PhaseMemory(peak_bytes=size, end_bytes=0)},
            resident_bytes=size,
            predicted_memory_bytes={"x": moved},
        )
        for variant, numbers in (("a", samples), ("b", samples[::-1]))
    ]
    rows = summarize(records)
    return {name: [draw_svg(plot) for plot in kind.make(rows)] for name, kind in KINDS.items()}


@settings(max_examples=40)
@given(st.lists(times, min_size=12, max_size=12), times, times, sizes)
def test_any_record_is_drawn_or_left_out(
    samples: list[float], flops: float, moved: float, size: int
) -> None:
    drawn = draw_all(samples, flops, moved, size)
    assert drawn.keys() == KINDS.keys()
    for svg in (svg for plots in drawn.values() for svg in plots):
        _, _, width, height = map(float, parse(svg).attrib["viewBox"].split())
        places = coordinates(svg)
        assert places
        assert all(-9 <= x <= width + 9 and -9 <= y <= height + 9 for x, y in places)


def test_a_usual_record_is_drawn_and_not_left_out() -> None:
    drawn = draw_all([1e6 * (1 + 0.01 * n) for n in range(12)], 1e9, 1e6, 2**20)
    assert {name for name, plots in drawn.items() if plots} >= {
        "speedups", "losses", "parts", "memory", "samples", "distribution"
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e300])
def test_numbers_that_are_none_do_not_break_a_drawing(value: float) -> None:
    record = make_record(
        flops={"call": {"float32": value}},
        bytes={"call": value},
        facts={"tokens": value, "parameters": value},
        curves={"step": [1.0, value], "validation_loss": [value, 2.0]},
        predicted_memory_bytes={"x": value, "y": 1.0},
    )
    rows = summarize([record])
    drawn = [draw_svg(plot) for kind in KINDS.values() for plot in kind.make(rows)]
    assert len(drawn) >= 2
    assert not any("nan" in svg or "inf" in svg for svg in drawn)


def test_pages_stay_small_however_many_cases_there_are() -> None:
    records = [
        record
        for n in range(1000)
        for record in compare({"dense": 1, "a": 1 + n / 1000}, str(n), params={"n": n})
    ]
    drawn = [draw_svg(plot) for plot in choose_plots(summarize(records))]
    assert drawn
    assert max(map(len, drawn)) < 250_000


# Files


def read_png_size(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", content[16:24])
    return width, height


@every_plot
def test_files_are_drawn_with_their_words(plot: Plot, tmp_path: Path) -> None:
    draw_file(plot, tmp_path / "p.png")
    content = (tmp_path / "p.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    drawing = compose(plot, with_words=True)
    assert read_png_size(content) == (2 * drawing.width, 2 * drawing.height)
    assert MAKER.encode() in content
    texts = " ".join(s.text for s in drawing.shapes if isinstance(s, Text))
    assert plot.title in texts
    assert plot.conditions in texts


@pytest.mark.parametrize(("ending", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF-")])
def test_other_formats_are_what_they_say_and_always_the_same(ending: str, start: bytes) -> None:
    (plot,) = draw("speedups")
    content = draw_bytes(plot, ending)
    assert content.startswith(start)
    assert MAKER.encode() in content
    assert draw_bytes(plot, ending) == content


def test_texts_take_no_more_room_than_was_left_for_them() -> None:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans")
    texts = {
        shape.text
        for plot in PLOTS.values()
        for shape in flatten(compose(plot, with_words=False).shapes)
        if isinstance(shape, Text) and shape.text
    }
    texts |= {"model=medium warmup_steps=5", "full+recompute-full gpt-13b", "MWMW", "a\ufffdb"}
    assert len(texts) > 50
    for text in texts:
        width = TextPath((0, 0), text, size=12 * FONT_SCALE, prop=font).get_extents().width
        assert width <= measure(text) + 1, text


def test_a_users_own_settings_have_no_say() -> None:
    import matplotlib

    (plot,) = draw("speedups")
    content = draw_bytes(plot, ".png")
    with matplotlib.rc_context({"lines.linewidth": 9, "font.family": "serif", "savefig.dpi": 10}):
        assert draw_bytes(plot, ".png") == content


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
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_told_apart(scheme: dict[str, str], vision: str) -> None:
    """A distance of 2 is just visible side by side; lines apart from each other need much more."""
    assert len(scheme) == COLOURS + 1
    seen = [to_lab(multiply(VISIONS[vision], linear(colour))) for colour in scheme.values()]
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 25


def test_the_style_has_both_schemes_and_every_ink_that_is_used() -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    used = set().union(*(re.findall(r"var\(--(\w+)\)", draw_svg(p)) for p in PLOTS.values()))
    assert used >= {"c0", "c1", "grid", "faint"}
    assert used <= set(re.findall(r"--(\w+):", light))
    assert {"c0", "c1", "faint"} <= set(re.findall(r"--(\w+):", dark))


def test_markers_of_the_drawers_are_the_same() -> None:
    shapes = {
        s.shape
        for plot in PLOTS.values()
        for s in flatten(compose(plot, with_words=False).shapes)
        if isinstance(s, Marker)
    }
    assert {"circle", "square"} <= shapes


def test_the_page_has_the_plots_of_its_tables() -> None:
    assert '<svg class="plot"' not in render_page(compare({"dense": 1, "a": 2}))
    assert render_page(SPEEDUPS).count('<svg class="plot"') == 1
