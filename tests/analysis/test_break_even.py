"""Where a variant starts to win, along tokens and any other axis of counts: hand-made speedups in,
words, points and lines out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from flopwatch.analysis.break_even import as_dict, choose_axis, find_break_evens, series_as_dict
from flopwatch.analysis.statistics import THRESHOLD
from flopwatch.analysis.summary import Row, summarize
from flopwatch.cli.main import cli
from flopwatch.errors import UsageError
from flopwatch.output.case_tables import describe_break_even, make_break_even_sheets
from flopwatch.output.layouts import lay_out_plain
from flopwatch.output.page import render_page
from flopwatch.output.plots import choose_plots
from flopwatch.output.plots.plot_files import draw_bytes
from flopwatch.records.published import load
from flopwatch.records.record import Record, encode
from flopwatch.settings import Settings
from tests.analysis.test_parts import failed, layer_record
from tests.conftest import make_record


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


def make_few(name: str, tokens: int, time_ns: float) -> Record:
    """Two samples, which have no interval."""
    few = {"rounds": [0, 1], "calls_per_sample": [1, 1], "warmup_samples": 0}
    return layer_record(name, {}, tokens=tokens, samples_ns={"forward": [time_ns, time_ns]}, **few)


def test_what_is_unclear_does_not_pay() -> None:
    unclear = [make_few(name, 64, 1e6) for name in ("dense", "fast")]
    (break_even,) = find_break_evens(summarize([*series({16: 0.5, 256: 1.2}), *unclear]))
    assert describe_break_even(break_even) == "from 256 tokens on; at 64 that is unclear"
    (break_even,) = find_break_evens(summarize([*series({16: 0.5}), *unclear]))
    assert describe_break_even(break_even) == "unclear, up to 64 tokens"


def test_the_point_lies_in_its_interval_next_to_a_batch_without_one() -> None:
    between = [make_few("dense", 64, 1e6), make_few("fast", 64, 5e6)]
    (break_even,) = find_break_evens(summarize([*series({16: 0.5, 256: 1.2}), *between]))
    (crossing,) = break_even.crossings
    assert crossing.low is not None
    assert crossing.high is not None
    assert crossing.low <= crossing.point <= crossing.high


def test_what_is_only_slightly_faster_does_not_pay() -> None:
    def slightly(tokens: int) -> list[Record]:
        dense = layer_record("dense", {"forward": 1.0}, tokens=tokens)
        count = len(dense.rounds)
        times_ns = [1e6 * (1 + 0.9 * THRESHOLD * (n % 3 - 1)) for n in range(count)]
        taken = {"forward": [t / (1 + 0.95 * THRESHOLD) for t in times_ns]}
        return [
            replace(dense, samples_ns={"forward": [1e6] * count}),
            replace(layer_record("fast", {"forward": 1.0}, tokens=tokens), samples_ns=taken),
        ]

    (break_even,) = find_break_evens(summarize([*series({16: 0.5, 256: 1.2}), *slightly(64)]))
    assert break_even.rows[1].verdict == "slightly faster"
    assert describe_break_even(break_even) == "from 256 tokens on; at 64 it is only slightly faster"
    (break_even,) = find_break_evens(summarize([*series({16: 0.5}), *slightly(64)]))
    assert describe_break_even(break_even) == "only slightly, up to 64 tokens"


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


SVG = "{http://www.w3.org/2000/svg}"


def test_labels_of_the_chart_do_not_touch() -> None:
    rows = summarize(series(dict.fromkeys((16, 1000, 1001, 4096), 1.2)))
    (plot,) = [plot for plot in choose_plots(rows) if plot.name == "break-even"]
    drawn = ElementTree.fromstring(draw_bytes(plot, ".svg")).iter(f"{SVG}text")
    # Vega hides a label that would touch another.
    words = [element.text for element in drawn if element.attrib.get("opacity") != "0"]
    assert "1000" in words
    assert "1001" not in words


WIDE = [0.9, 1.1] * 10
"""Times of rounds whose median has an interval of 10 %."""


def make_series(
    speedups: dict[int, float],
    *,
    axis: str = "batch_size",
    times: list[float] | None = None,
    **params: object,
) -> list[Record]:
    """A baseline of 100 ns, and `fast`, whose times scatter as `times` do."""
    scatter = [1.0] * 20 if times is None else times
    return [
        make_record(
            case_id=f"{name}{place}{params}",
            group_id=f"{place}{params}",
            variant=name,
            baseline="dense",
            params={axis: place, **params},
            samples_ns={"call": [100 * (s if name == "fast" else 1) / speed for s in scatter]},
            rounds=list(range(len(scatter))),
            calls_per_sample=[1] * len(scatter),
        )
        for place, speedup in speedups.items()
        for name, speed in (("dense", 1.0), ("fast", speedup))
    ]


def summarize_series(speedups: dict[int, float], **options: object) -> list[Row]:
    return summarize(make_series(speedups, **options))  # type: ignore[arg-type]


def test_the_point_is_interpolated_in_logarithms_and_its_interval_too() -> None:
    """From 0.5 to 2 is as far below 1 as above; ends of intervals are 1 / 1.1 and 1 / 0.9."""
    rows = summarize_series({16: 0.5, 256: 2.0}, times=WIDE)
    ((crossing,),) = (found.crossings for found in find_break_evens(rows, "batch_size"))
    assert crossing.point == pytest.approx(64.0)
    # On the upper ends' curve, from 0.5 / 0.9 to 2 / 0.9: 1 is log(1.8) / log(4) of the way.
    assert crossing.low == pytest.approx(16 * 1.8**2)
    assert crossing.high == pytest.approx(16 * 2.2**2)
    assert (crossing.below, crossing.above) == tuple(row for row in rows if row.verdict)


def test_unclear_cases_between_clear_ones_are_part_of_the_curve() -> None:
    rows = [
        *summarize_series({16: 0.5, 256: 2.0}),
        *summarize_series({64: 1.001}, times=WIDE),
    ]
    (found,) = find_break_evens(rows, "batch_size")
    assert [row.verdict for row in found.rows] == ["slower", "unclear", "faster"]
    (crossing,) = found.crossings
    assert 16 < crossing.point < 64
    assert crossing.low is not None
    assert crossing.high is not None
    assert 16 < crossing.low < crossing.point < 64 < crossing.high < 256
    assert as_dict(found)["crossings"][0]["between"] == [16, 256]


@pytest.mark.parametrize(
    ("speedups", "outcome", "words", "crossings"),
    [
        ({1: 0.5, 4: 2.0}, "from", "from batch_size 4 on; at 1 it is slower", ["2 [2, 2]"]),
        ({1: 2.0, 4: 0.5}, "up-to", "not at batch_size 4, but at 1", ["2 [2, 2]"]),
        ({1: 1.5, 4: 2.0}, "always", "at every value measured, from batch_size 1 on", []),
        ({1: 0.5, 4: 0.9}, "never", "never, up to batch_size 4", []),
        ({1: 0.5, 4: 1.0}, "never", "never, up to batch_size 4", []),
        ({1: 1.0, 4: 2.0}, "from", "from batch_size 4 on; at 1 it is as fast", []),
        ({1: 0.5, 4: 2.0, 16: 0.5}, "several",
         "not at batch_size 16, but at 4, and it crosses 2 times", ["2", "8"]),
    ],
)  # fmt: skip
def test_how_a_series_comes_out(
    speedups: dict[int, float], outcome: str, words: str, crossings: list[str]
) -> None:
    rows = summarize_series(speedups)
    (found,) = find_break_evens(rows, "batch_size")
    assert found.outcome == outcome
    assert describe_break_even(found) == words
    (sheet,) = make_break_even_sheets(rows, "batch_size")
    assert sheet.title == "demo, speedup by batch_size"
    cells = dict(zip(sheet.headings, sheet.groups[0][0], strict=True))
    assert cells.get("crosses 1 at", "") == ", ".join(crossings)


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ({1: 0.5, 4: 2.0}, "from between batch_size 1 and 4 on, by values alone"),
        ({1: 2.0, 4: 0.5}, "up to between batch_size 1 and 4, by values alone"),
        ({1: 1.5, 4: 2.0}, "at every value measured, from batch_size 1 on, by values alone"),
        ({1: 0.5, 4: 0.9}, "never, up to batch_size 4, by values alone"),
        ({1: 0.5, 4: 2.0, 16: 0.5},
         "to and fro: it crosses between batch_size 1 and 4, 4 and 16, by values alone"),
    ],
)  # fmt: skip
def test_single_values_have_a_point_and_no_interval(speedups: dict[int, float], words: str) -> None:
    (found,) = find_break_evens(summarize_series(speedups, times=[1.0]), "batch_size")
    assert found.is_bare
    assert not found.paying  # that takes verdicts
    assert describe_break_even(found) == words
    assert {(each.low, each.high) for each in found.crossings} <= {(None, None)}


def test_several_samples_without_an_interval_are_unclear() -> None:
    rows = summarize_series({1: 0.5, 4: 2.0}, times=[1.0] * 3)
    assert {row.verdict for row in rows if row.verdict} == {"unclear"}
    (found,) = find_break_evens(rows, "batch_size")
    assert (found.is_bare, found.outcome, found.crossings) == (False, "unclear", [])
    assert describe_break_even(found) == "unclear, up to batch_size 4"


def test_the_published_name_of_an_axis_is_understood() -> None:
    rows = summarize(load("switchback"))
    assert choose_axis(rows, "batch_size") == choose_axis(rows, "tokens") == "tokens"


def test_all_published_shapes_of_switchback_have_a_break_even() -> None:
    found = find_break_evens(summarize(load("switchback")), "tokens")
    assert len(found) == 2 * 18
    assert all(break_even.outcome == "from" for break_even in found)
    first = series_as_dict(found[0])
    assert first["params"]["shape"] == [1024, 4096]
    assert first["variant"] == "switchback:rowwise"
    (crossing,) = first["crossings"]
    assert crossing["between"] == [8192, 16384]
    assert 8192 < crossing["point"] < 16384


def test_the_axis_is_found_or_chosen() -> None:
    one = summarize_series({1: 0.5, 4: 2.0}, dtype="float32")
    assert choose_axis(one) == "batch_size"
    two = [*one, *summarize_series({1: 0.5}, width=2), *summarize_series({1: 2.0}, width=4)]
    with pytest.raises(UsageError, match="series along batch_size, width; choose one by --axis"):
        choose_axis(two)
    assert choose_axis(two, "width") == "width"
    with pytest.raises(UsageError, match="counts of 'dtype'; there are series along batch_size"):
        choose_axis(one, "dtype")
    with pytest.raises(UsageError, match="measure some, as by --set"):
        choose_axis(one[:2])


def test_series_of_other_baselines_are_apart() -> None:
    rows = summarize(
        [
            *make_series({1: 0.5}),
            *(
                make_record(case_id=f"{r.case_id}x", variant=v, baseline="other",
                            group_id=r.group_id, run_id="s", params={"batch_size": 4})
                for r in make_series({4: 2.0})[:1]
                for v in ("other", "fast")
            ),
        ]
    )  # fmt: skip
    assert find_break_evens(rows, "batch_size") == []


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    records = [*make_series({1: 0.5, 4: 2.0}), *make_series({1: 0.9}, dtype="float16")]
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


def test_the_command_prints_a_table_or_json(results: Path) -> None:
    table = CliRunner().invoke(cli, ["compare", str(results), "--break-even"])
    assert table.exit_code == 0, table.output
    assert "demo, speedup by batch_size" in table.stdout
    assert "from batch_size 4 on; at 1 it is slower" in table.stdout
    assert "covers noise, not the shape of the curve" in table.stdout
    arguments = [
        "compare",
        str(results),
        "--break-even",
        "--axis",
        "batch_size",
        "--variant",
        "fast",
        "--json",
    ]
    (found,) = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert found["speedups"] == [0.5, 2.0]
    assert found["verdicts"] == ["slower", "faster"]
    assert found["crossings"][0]["point"] == pytest.approx(2.0)


def test_an_unknown_variant_is_refused(results: Path) -> None:
    result = CliRunner().invoke(
        cli, ["compare", str(results), "--break-even", "--variant", "quick"]
    )
    assert isinstance(result.exception, UsageError)
    assert "'quick' was not compared with a baseline; what was: fast" in str(result.exception)
