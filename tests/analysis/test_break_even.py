"""From which batch on a variant pays: hand-made speedups in, words and lines out."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from flopwatch.analysis.break_even import as_dict, find_break_evens
from flopwatch.analysis.summary import summarize
from flopwatch.output.case_tables import describe_break_even, make_break_even_sheets
from flopwatch.output.layouts import lay_out_plain
from flopwatch.output.page import render_page
from flopwatch.output.plots import choose_plots
from flopwatch.output.plots.svg import draw_svg
from flopwatch.records.record import Record
from flopwatch.settings import Settings
from tests.analysis.test_parts import failed, layer_record


def series(speedups: dict[int, float], variant: str = "fast", **changes: object) -> list[Record]:
    """A baseline of 1 ms and a variant, at each number of tokens."""
    return [
        layer_record(name, {"forward": 1.0 / speed}, tokens=tokens, **changes)
        for tokens, speedup in speedups.items()
        for name, speed in (("dense", 1.0), (variant, speedup))
    ]


@pytest.mark.parametrize(
    ("speedups", "faster_from", "below", "words"),
    [
        ({16: 0.5, 64: 0.9, 256: 1.2, 999: 1.5}, 256, 64, "from 256 tokens on; at 64 it is slower"),
        ({16: 0.5, 64: 1.0, 256: 1.2}, 256, 64, "from 256 tokens on; at 64 it is as fast"),
        ({16: 1.2, 64: 1.3}, 16, None, "at every batch measured, from 16 tokens on"),
        ({16: 0.5, 4096: 1.0}, None, 4096, "never, up to 4096 tokens"),
        # one that is faster between slower ones is not the start
        ({4: 0.9, 16: 1.2, 64: 0.9, 256: 1.2}, 256, 64,
         "from 256 tokens on; at 64 it is slower, and it crosses 3 times"),
        ({16: 1.2, 64: 1.2, 256: 0.9}, None, 256, "not at 256 tokens, but at 16, 64"),
        # in whatever order they were measured
        ({256: 1.2, 16: 0.9, 64: 0.8}, 256, 64, "from 256 tokens on; at 64 it is slower"),
    ],
)  # fmt: skip
def test_a_variant_pays_where_it_is_faster_from_there_on(
    speedups: dict[int, float], faster_from: int | None, below: int | None, words: str
) -> None:
    (break_even,) = find_break_evens(summarize(series(speedups)))
    found = as_dict(break_even)
    assert (found["axis"], found["measured"]) == ("tokens", sorted(speedups))
    assert (found["faster_from"], found["below"]) == (faster_from, below)
    assert describe_break_even(break_even) == words


def test_what_is_unclear_does_not_pay() -> None:
    few = {
        "samples_ns": {"forward": [1e6, 1e6]},
        "rounds": [0, 1],
        "calls_per_sample": [1, 1],
        "warmup_samples": 0,
    }
    unclear = [layer_record(name, {}, tokens=64, **few) for name in ("dense", "fast")]
    (break_even,) = find_break_evens(summarize([*series({16: 0.5, 256: 1.2}), *unclear]))
    assert describe_break_even(break_even) == "from 256 tokens on; at 64 that is unclear"
    (break_even,) = find_break_evens(summarize([*series({16: 0.5}), *unclear]))
    assert describe_break_even(break_even) == "unclear, up to 64 tokens"


def test_what_was_not_measured_is_left_out() -> None:
    lost = failed("fast", "oom", "needs 3 TiB", tokens=4096)
    dense = layer_record("dense", {"forward": 1.0}, tokens=4096)
    (break_even,) = find_break_evens(summarize([*series({16: 0.5, 64: 1.2}), dense, lost]))
    assert as_dict(break_even)["measured"] == [16, 64]


@pytest.mark.parametrize(
    "records",
    [
        series({16: 0.5}),
        [*series({16: 0.5}), *series({64: 1.2}, shape=[3072, 768])],
        [*series({16: 0.5}), *series({64: 1.2}, settings=Settings(cache="cold"))],
        [*series({16: 0.5}), *series({64: 1.2}, variant="other")],
        [*series({16: 0.5}), *series({64: 1.2}, suite="mine")],
        series({0: 0.5, 16: 1.2}),
        [record for record in series({16: 0.5, 64: 1.2}) if record.variant == "fast"],
    ],
    ids=["one", "shapes", "conditions", "variants", "suites", "no tokens", "no baseline"],
)
def test_other_cases_make_no_series(records: list[Record]) -> None:
    rows = summarize(records)
    assert find_break_evens(rows) == []
    assert make_break_even_sheets(rows) == []


THREE = [
    *series({16: 0.5, 64: 0.9, 256: 1.2}),
    *series({64: 1.2, 256: 1.5}, variant="faster"),
    *series({16: 0.5, 64: 0.75, 256: 0.8}, dtype="bfloat16"),
]


def test_the_table_has_the_speedups_side_by_side() -> None:
    (sheet,) = make_break_even_sheets(summarize(THREE))
    assert sheet.title == "switchback level=layer shape=768x3072, speedup by tokens"
    assert sheet.headings == ["dtype", "variant", "16", "64", "256", "crosses 1 at", "break-even"]
    first, second = sheet.groups
    assert first[0] == [
        "float32", "fast", "0.50x", "0.90x", "1.20x", "106 [106, 106]",
        "from 256 tokens on; at 64 it is slower",
    ]  # fmt: skip
    assert first[1][:5] == ["float32", "faster", "", "1.20x", "1.50x"]
    assert second == [
        ["bfloat16", "fast", "0.50x", "0.75x", "0.80x", "", "never, up to 256 tokens"],
    ]


def test_what_is_not_comparable_is_told() -> None:
    differences = [
        layer_record("fast", {"forward": 0.5}, tokens=tokens, conditions={"autocast": "float16"})
        for tokens in (16, 64)
    ]
    dense = [layer_record("dense", {"forward": 1.0}, tokens=tokens) for tokens in (16, 64)]
    (break_even,) = find_break_evens(summarize([*dense, *differences]))
    assert describe_break_even(break_even) == (
        "at every batch measured, from 16 tokens on, not comparable"
    )


def test_every_row_of_a_series_has_it_in_the_json() -> None:
    rows = lay_out_plain(summarize(series({16: 0.5, 64: 1.2}))).content
    point = pytest.approx(47.951, abs=0.001)  # log 2 of the way to log 2.4 above log 0.5
    crossing = {"between": [16, 64], "pays": "above", "point": point, "low": point, "high": point}
    expected = {
        "axis": "tokens", "measured": [16, 64], "outcome": "from", "faster_from": 64, "below": 16,
        "crossings": [crossing],
    }  # fmt: skip
    assert [row["break_even"] for row in rows] == [None, expected, None, expected]


def test_two_batches_make_a_table_and_no_chart() -> None:
    rows = summarize(series({16: 0.5, 64: 1.2}))
    assert "break-even" not in [plot.name for plot in choose_plots(rows)]
    assert "speedup by tokens</h3>" in render_page(series({16: 0.5, 64: 1.2}))


def test_labels_of_the_chart_do_not_touch() -> None:
    rows = summarize(series(dict.fromkeys((16, 1000, 1001, 4096), 1.2)))
    (plot,) = [plot for plot in choose_plots(rows) if plot.name == "break-even"]
    words = [e.text for e in ElementTree.fromstring(draw_svg(plot)).iter("text")]
    assert "1000" in words
    assert "1001" not in words
