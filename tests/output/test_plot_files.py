"""Every plot as a file: drawn by vl-convert, well-formed whatever it is given, and recognised."""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch.analysis.summary import summarize
from flopwatch.output.plots import KINDS, Plot, choose_plots
from flopwatch.output.plots.plot import MAKER, WIDTH
from flopwatch.output.plots.plot_files import PNG_SCALE, draw_bytes, draw_files
from flopwatch.records.record import PhaseMemory
from tests.conftest import make_record
from tests.plot_tools import GALLERY, SPEEDUPS, compare, draw, encodings

PLOTS = {
    f"{name}-{place}": plot
    for name in GALLERY
    for place, plot in enumerate(draw(name))
}  # fmt: skip
EVIL = '"><script>alert(1)</script>&\x00$x_1$'
every_plot = pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS.keys())


def draw_svg(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(draw_bytes(plot, ".svg"))


def list_texts(root: ElementTree.Element) -> list[str]:
    found = [element for element in root.iter() if element.tag.endswith("}text")]
    return [" ".join(element.itertext()) for element in found]


def count_items(root: ElementTree.Element, mark: str) -> int:
    """Drawn shapes of data, not those of axes and legends."""
    groups = [e for e in root.iter() if f"mark-{mark} role-mark" in e.attrib.get("class", "")]
    return sum(len(list(group)) for group in groups)


@every_plot
def test_every_mark_is_drawn(plot: Plot) -> None:
    root = draw_svg(plot)
    points = plot.data.get("points", [])
    assert count_items(root, "symbol") >= len(points)
    assert count_items(root, "rect") >= len(plot.data.get("bars", []))
    assert len(points) + len(plot.data.get("bars", [])) > 0
    labels = {e.attrib["aria-label"] for e in root.iter() if "aria-label" in e.attrib}
    told = {row["tip"] for data in ("points", "bars") for row in plot.data.get(data, [])}
    assert told <= labels
    assert not re.search(r"\b(NaN|Infinity|undefined)\b", draw_bytes(plot, ".svg").decode())


@every_plot
def test_names_axes_and_words_are_written(plot: Plot) -> None:
    texts = list_texts(draw_svg(plot))
    assert plot.title in " ".join(texts)
    assert plot.caption.split(".")[0][:60] in " ".join(texts)
    titles = [encoding.get("title") for c in "xy" for encoding in encodings(plot, c)]
    assert {title for title in titles if title} <= set(texts)
    for lane in plot.data.get("lanes", []):
        assert lane["text"] in texts
        assert lane["note"] in texts
    legends = [e for c in ("color", "fill", "shape") for e in encodings(plot, c) if e.get("legend")]
    assert {name for e in legends for name in e["scale"]["domain"]} <= set(texts)


@every_plot
def test_files_are_as_wide_as_they_say(plot: Plot, tmp_path: Path) -> None:
    (file,) = draw_files([plot], tmp_path / "p.png")
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width == pytest.approx(PNG_SCALE * WIDTH, abs=2 * PNG_SCALE)
    assert height > PNG_SCALE * plot.height
    assert MAKER.encode() in content


def test_a_signed_png_is_still_one() -> None:
    (plot,) = draw("speedups")
    content = draw_bytes(plot, ".png")
    place, names = 8, []
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        body = content[place + 4 : place + 8 + size]
        (checksum,) = struct.unpack(">I", content[place + 8 + size : place + 12 + size])
        assert zlib.crc32(body) == checksum
        names.append(body[:4])
        place += 12 + size
    assert names[0] == b"IHDR"
    assert names[-2:] == [b"tEXt", b"IEND"]


@pytest.mark.parametrize(
    ("ending", "start"), [(".svg", b"<svg"), (".pdf", b"%PDF-"), (".json", b"{\n")]
)
def test_other_formats_are_what_they_say(ending: str, start: bytes) -> None:
    (plot,) = draw("speedups")
    content = draw_bytes(plot, ending)
    assert content.startswith(start)
    assert MAKER.encode() in content
    if ending != ".pdf":  # which numbers its fonts as they come
        assert draw_bytes(plot, ending) == content


def test_the_specification_is_written_as_it_is() -> None:
    (plot,) = draw("speedups")
    assert json.loads(draw_bytes(plot, ".json")) == plot.to_spec()


def test_all_text_is_escaped_and_nothing_of_it_is_lost_on_the_way() -> None:
    records = [
        replace(r, variant=r.variant.replace("fast", EVIL), suite=EVIL, params={EVIL: r.group_id})
        for r in SPEEDUPS
    ]
    (plot,) = draw("speedups", records)
    assert b"<script" not in draw_bytes(plot, ".svg")
    assert '"><script>alert(1)</script>& $x_1$' in list_texts(draw_svg(plot))
    assert draw_bytes(plot, ".png")


def test_names_in_any_script_are_drawn_without_a_word() -> None:
    (plot,) = draw("speedups", compare({"dense": 1, "变体": 2, "🚀": 3}))
    assert "变体" in list_texts(draw_svg(plot))
    assert draw_bytes(plot, ".png").startswith(b"\x89PNG")


# What no machine gives

times = st.floats(min_value=1e-120, max_value=1e120)
sizes = st.integers(min_value=0, max_value=2**62)


def make_all(samples: list[float], flops: float, moved: float, size: int) -> dict[str, list[Plot]]:
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
    return {name: list(kind.make(rows)) for name, kind in KINDS.items()}


@settings(max_examples=60)
@given(st.lists(times, min_size=12, max_size=12), times, times, sizes)
def test_any_record_is_drawn_or_left_out(
    samples: list[float], flops: float, moved: float, size: int
) -> None:
    found = make_all(samples, flops, moved, size)
    assert found.keys() == KINDS.keys()
    for plot in (plot for plots in found.values() for plot in plots):
        json.dumps(plot.to_spec(), allow_nan=False)


@pytest.mark.parametrize("scale", [1e-90, 1e-3, 1e6, 1e95])
def test_times_of_any_size_are_rendered(scale: float) -> None:
    found = make_all([scale * (1 + 0.01 * n) for n in range(12)], 1e9, 1e6, 2**20)
    drawn = {name for name, plots in found.items() if plots}
    assert drawn >= {"speedups", "losses", "parts", "memory", "samples", "distribution"}
    for plot in (plots[0] for plots in found.values() if plots):
        assert count_items(draw_svg(plot), "symbol") + count_items(draw_svg(plot), "rect") > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e300, -5.0])
def test_numbers_that_are_none_do_not_break_a_drawing(value: float) -> None:
    record = make_record(
        flops={"call": {"float32": value}},
        bytes={"call": value},
        facts={"tokens": value, "parameters": value},
        curves={"step": [1.0, value], "validation_loss": [value, 2.0]},
        predicted_memory_bytes={"x": value, "y": 1.0},
    )
    rows = summarize([record])
    plots = [plot for kind in KINDS.values() for plot in kind.make(rows)]
    assert len(plots) >= 2
    for plot in plots:
        assert not re.search(r"\b(NaN|Infinity)\b", draw_bytes(plot, ".svg").decode())


def test_pages_stay_small_however_many_cases_there_are() -> None:
    records = [
        record
        for n in range(1000)
        for record in compare({"dense": 1, "a": 1 + n / 1000}, str(n), params={"n": n})
    ]
    drawn = [json.dumps(plot.to_view()) for plot in choose_plots(summarize(records))]
    assert drawn
    assert max(map(len, drawn)) < 250_000
