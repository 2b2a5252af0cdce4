"""Plots as specifications: what data they have, how it is encoded, and with what words."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch.analysis.summary import summarize
from flopwatch.errors import UsageError
from flopwatch.output.plots import KINDS, Plot, choose_plots
from flopwatch.output.plots.channels import (
    BYTES,
    PLAIN,
    TIME,
    choose_log_ticks,
    lay_above,
    make_axis,
    make_count_axis,
)
from flopwatch.output.plots.plot import HUGE, MIME, MOST_POINTS, VERSION, shorten, thin
from flopwatch.output.plots.plot_catalog import describe_missing, make_plots
from flopwatch.output.plots.speedup_plots import CLEAR, LIMIT, UNCLEAR, UNKNOWN
from flopwatch.output.tables import divide
from flopwatch.records.published import load
from flopwatch.settings import Settings
from flopwatch.suites.catalog import BUILT_IN, load_suite
from tests.analysis.test_quality import DENSE, trained
from tests.conftest import make_record
from tests.plot_tools import (
    GALLERY,
    INTENSE,
    JOBS,
    LOSSES,
    MS,
    PARTS,
    SAMPLES,
    SIZES,
    SPEEDUPS,
    add_peaks,
    axis,
    compare,
    draw,
    encodings,
    legend,
    make_step,
    series,
    texts,
)

ratios = st.floats(min_value=1 / HUGE, max_value=HUGE)
FEW = {"rounds": [0, 1, 2], "calls_per_sample": [1] * 3}
NOT_COMPARABLE = "not comparable"


def draw_published(name: str, kind: str) -> list[Plot]:
    return list(make_plots(kind, divide(summarize(load(name)))))


# Axes


@given(ratios, ratios)
def test_ticks_of_logarithmic_axes_are_round_and_inside(one: float, other: float) -> None:
    low, high = sorted([one, other])
    found = choose_log_ticks(low, high)
    assert len(found) <= 12
    assert found == sorted(set(found))
    assert all(low * 0.9 <= tick <= high * 1.1 for tick in found)
    assert all(f"{tick:.1e}"[0] in "12357" for tick in found)
    if low < 0.3 and 3 < high < 400 * low:
        assert 1.0 in found


@pytest.mark.parametrize(
    ("values", "unit", "is_log", "title", "scaled"),
    [
        ([0, 12.4 * MS], TIME, False, "x, ms", 12.4),
        ([0, 3 * 2**30], BYTES, False, "x, GiB", 3.0),
        ([2e5, 5e5], TIME, True, "x, µs", 500.0),
        ([1e5, 5e9], TIME, True, "x", 5.0),  # in seconds: every tick has its own unit
        ([100, 100], PLAIN, False, "x", 100.0),
    ],
)
def test_axes_have_units_that_people_read(
    values: list[float], unit: object, is_log: bool, title: str, scaled: float
) -> None:
    found = make_axis("x", values, unit, is_log=is_log)  # type: ignore[arg-type]
    assert found.title == title
    assert found.scale(values[-1]) == scaled
    if title == "x" and is_log:
        assert found.label == "format(datum.value, '~s') + 's'"


def test_an_axis_of_counts_has_a_tick_at_each() -> None:
    encoding = make_count_axis("tokens", [64, 16, 64, 256]).channel()
    assert encoding["axis"]["values"] == [16, 64, 256]
    assert encoding["scale"]["type"] == "log"
    assert "values" not in make_count_axis("n", range(1, 100)).channel()["axis"]


# Words


def test_long_names_keep_their_ends_and_odd_characters_go() -> None:
    assert shorten("a" * 36) == "a" * 36
    short = shorten("switchback:rowwise:" + "x" * 30 + ":int8")
    assert len(short) == 36
    assert short.endswith(":int8")
    assert shorten("a\x00b\nc\u202e") == "a b c "


def test_legends_have_fewer_columns_for_longer_names() -> None:
    assert lay_above(["a", "b"])["columns"] > lay_above(["a" * 25])["columns"] > 1
    assert lay_above(["a" * 1000])["columns"] >= 1


def test_thinning_keeps_ends_and_outliers() -> None:
    points = [{"x": n, "y": 100.0 if n == 5001 else n % 7} for n in range(10_000)]
    kept = thin(points)
    assert len(kept) <= MOST_POINTS
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert points[5001] in kept
    assert [p["x"] for p in kept] == sorted(p["x"] for p in kept)
    assert thin(points[:MOST_POINTS]) == points[:MOST_POINTS]


# Specifications


@pytest.mark.parametrize("name", GALLERY)
def test_a_specification_has_its_words_its_data_and_nothing_else_to_fetch(name: str) -> None:
    for plot in draw(name):
        spec = plot.to_spec()
        text = json.dumps(spec, allow_nan=False)
        assert spec["$schema"].endswith(f"/v{VERSION.partition('.')[0]}.json")
        assert " ".join(spec["title"]["text"]) == plot.title
        told = " ".join(spec["title"]["subtitle"])
        assert plot.caption in told
        assert plot.conditions in told
        assert '"url"' not in text
        assert '"href"' not in text
        named = {layer["data"]["name"] for layer in spec["layer"]}
        assert named == {data for data in spec["datasets"] if data in named}
        assert all(isinstance(rows, list) for rows in spec["datasets"].values())


@pytest.mark.parametrize("name", GALLERY)
def test_every_mark_of_a_value_has_a_tip(name: str) -> None:
    for plot in draw(name):
        told = [
            row["tip"]
            for data in ("points", "bars")
            for row in plot.data.get(data, [])
        ]  # fmt: skip
        assert told
        assert all(told)
        assert {"field": "tip"} in encodings(plot, "tooltip")


def test_notebooks_show_the_specification() -> None:
    (plot,) = draw("speedups")
    bundle = plot._repr_mimebundle_()
    assert bundle[MIME] == plot.to_spec()
    assert f"application/vnd.vegalite.v{VERSION.partition('.')[0]}+json" == MIME
    assert bundle["text/plain"] == "Speedup over dense, demo"


def test_texts_of_records_are_data_and_never_expressions() -> None:
    evil = "alert(1)'\"]</script><script>"
    records = [
        replace(r, variant=r.variant.replace("fast", evil), suite=evil, params={evil: r.group_id})
        for r in SPEEDUPS
    ]
    plots = [plot for kind in KINDS.values() for plot in kind.make(summarize(records))]
    assert {plot.name for plot in plots} >= {"speedups", "samples", "distribution"}

    def list_expressions(node: object) -> list[str]:
        if isinstance(node, list):
            return [found for part in node for found in list_expressions(part)]
        if not isinstance(node, dict):
            return []
        own = [
            node[key] for key in ("test", "filter", "labelExpr", "expr", "signal") if key in node
        ]
        return own + [found for part in node.values() for found in list_expressions(part)]

    expressions = [found for plot in plots for found in list_expressions(plot.to_spec())]
    assert expressions
    assert not any("alert" in str(expression) for expression in expressions)
    assert all("alert" in json.dumps(plot.to_spec()) for plot in plots)


# Speedups


def test_speedups_stand_in_lanes_below_their_case() -> None:
    (plot,) = draw("speedups")
    assert plot.title == "Speedup over dense"
    assert plot.subject == "demo"
    assert texts(plot, "headings") == ["size=4", "size=8"]
    assert texts(plot, "lanes") == ["fast", "slow", "fast"]
    assert texts(plot, "lanes", "note") == ["2.00x", "0.50x", "2.50x"]
    assert [p["x"] for p in series(plot, "fast")] == [2.0, 2.5]
    assert series(plot, "slow")[0]["tip"] == "slow, size=4\n0.50x [0.50, 0.50], slower"
    lanes = [row["y"] for row in plot.data["lanes"] + plot.data["headings"]]
    assert sorted(lanes) == [-4, -3, -2, -1, 0]
    assert plot.height == 5 * 20
    assert plot.data["baseline"] == [{"x": 1.0, "text": "dense"}]
    assert axis(plot, "x")["scale"]["type"] == "log"
    assert encodings(plot, "fill")[0]["legend"] is None  # all are clear


def test_limits_and_comparisons_that_are_not_comparable_are_marked_and_explained() -> None:
    dense, fast = compare({"dense": 1, "fast": 2})
    dense = replace(dense, flops={"call": {"float32": 3e6}})
    fast = replace(fast, flops={"call": {"float32": 1e6}}, conditions={"autocast": "on"})
    (plot,) = draw("speedups", [dense, fast])
    (point,) = series(plot, "fast")
    assert point["limit"] == pytest.approx(3)
    assert point["state"] == NOT_COMPARABLE
    assert not point["is_clear"]
    assert point["tip"].endswith("\nlimit 3.00x\nnot comparable")
    assert legend(plot, "fill") == [NOT_COMPARABLE, LIMIT]
    assert any(one.get("field") == "limit" for one in encodings(plot, "x"))


def test_a_speedup_without_an_interval_does_not_look_precise() -> None:
    known = compare({"dense": 1, "fast": 2}, "one", params={"size": 4})
    samples_ns = {"call": [10 * MS] * 3}
    unknown = compare(
        {"dense": 1, "fast": 2}, "two", params={"size": 8}, samples_ns=samples_ns, **FEW
    )
    (plot,) = draw("speedups", [*known, *unknown])
    assert [point["state"] for point in plot.data["points"]] == [CLEAR, UNKNOWN]
    assert [point["low"] is None for point in plot.data["points"]] == [False, True]
    assert legend(plot, "fill") == [CLEAR, UNKNOWN]
    assert "Dotted arrows: the interval of 1 of 2 is not known." in plot.caption
    dotted = [
        layer for layer in plot.layers
        if layer["mark"].get("strokeDash") and "transform" in layer
    ]  # fmt: skip
    assert [layer["transform"][0]["filter"] for layer in dotted] == ["!isValid(datum.low)"]
    # Open on both sides: an arrow points away from the mark at either end of the line.
    arrows = [layer for layer in plot.layers if layer["mark"].get("filled") and
              layer.get("transform", [{}])[0].get("filter") == "!isValid(datum.low)"]  # fmt: skip
    ends = {layer["mark"]["shape"]: layer["mark"]["xOffset"] for layer in arrows}
    assert ends.keys() == {"triangle-left", "triangle-right"}
    assert ends["triangle-left"] < 0 < ends["triangle-right"]


def test_an_unclear_verdict_is_hollow() -> None:
    noisy = [1e6 * (1 + n % 7) for n in range(20)]
    records = [
        *compare({"dense": 1}, samples_ns={"call": [3e6] * 20}),
        *compare({"fast": 1}, samples_ns={"call": noisy}),
    ]
    (plot,) = draw("speedups", records)
    (point,) = plot.data["points"]
    assert point["state"] == UNCLEAR
    hollow = [layer for layer in plot.layers if layer["mark"].get("fill") == "#ffffff"]
    assert [layer["transform"][0]["filter"] for layer in hollow] == ["!datum.is_clear"]
    assert not point["is_clear"]


def test_published_speedups_are_all_uncertain_and_those_not_comparable_are_still_named() -> None:
    (plot,) = draw_published("dyad", "speedups")
    assert all(point["low"] is None for point in plot.data["points"])
    assert legend(plot, "fill")[:2] == [UNKNOWN, NOT_COMPARABLE]
    assert plot.caption.endswith("Dotted arrows: the interval is not known.")


def test_with_one_rival_lanes_are_named_for_their_cases() -> None:
    records = [*compare({"dense": 1, "a": 2}, "1", params={"size": 1}),
               *compare({"dense": 1, "a": 3}, "2", params={"size": 2})]  # fmt: skip
    (plot,) = draw("speedups", records)
    assert texts(plot, "lanes") == ["size=1", "size=2"]
    assert plot.data["headings"] == []


def test_what_all_lanes_share_is_said_once() -> None:
    long, other = "a_long_name_of_an_axis", "another_axis_of_it"
    records = [
        record
        for size in (1, 2)
        for record in compare(
            {"dense": 1, "a": 2}, str(size), params={long: size, other: 7, "third": size}
        )
    ]
    failed = compare({"dense": 1}, "3", params={long: 1, other: 8, "third": 1})
    (plot,) = draw("speedups", [*records, *failed])
    assert texts(plot, "lanes") == ["1, 1", "2, 2"]
    assert texts(plot, "headings") == [f"{long}, third; {other}=7"]


def test_headings_lie_on_paper_above_the_lines() -> None:
    (plot,) = draw("speedups", SPEEDUPS)
    marks = [layer["mark"]["type"] for layer in plot.layers]
    paper = next(
        place for place, layer in enumerate(plot.layers)
        if layer["data"]["name"] == "headings" and layer["mark"]["type"] == "rect"
    )  # fmt: skip
    words = plot.layers[paper + 1]
    assert (words["data"]["name"], words["mark"]["type"]) == ("headings", "text")
    assert paper > max(place for place, mark in enumerate(marks) if mark == "rule")


def test_many_cases_share_a_lane_a_variant() -> None:
    records = [
        record
        for n in range(500)
        for record in compare({"dense": 1, "a": 1 + n / 100, "b": 0.5}, str(n), params={"n": n})
    ]
    (plot,) = draw("speedups", records)
    assert texts(plot, "lanes", "note") == ["1.00x to 5.99x", "0.50x"]
    drawn = series(plot, "a")
    assert len(drawn) == MOST_POINTS
    assert (min(p["x"] for p in drawn), max(p["x"] for p in drawn)) == (1.0, pytest.approx(5.99))
    assert all(-0.5 < p["y"] < 0.5 for p in drawn)


def test_without_a_baseline_there_are_no_speedups() -> None:
    assert draw("speedups", SPEEDUPS[1:3]) == []


# Break-even


def test_a_break_even_marks_where_it_begins_to_pay() -> None:
    (plot,) = draw("break-even")
    assert plot.title == "Speedup over dense by tokens"
    assert axis(plot, "x")["axis"]["values"] == [16, 64, 256, 1024]
    assert [(p["x"], p["pays"]) for p in series(plot, "fast")] == [
        (16, False), (64, False), (256, True), (1024, False)
    ]  # fmt: skip
    assert plot.caption.startswith("Break-even, ringed: fast from tokens=256 on.")
    (crossing,) = plot.data["crossings"]
    assert 64 < crossing["x"] < 256
    assert crossing["low"] <= crossing["x"] <= crossing["high"]
    assert crossing["y"] == 1.0
    assert crossing["tip"].startswith("fast crosses 1x at tokens=")
    assert plot.data["baseline"] == [{"y": 1.0, "text": "dense"}]
    assert all(point["is_certain"] for point in plot.data["points"])


def test_lines_are_named_in_the_order_in_which_they_end() -> None:
    (plot,) = draw("scaling")
    ends = {name: series(plot, name)[-1]["y"] for name in ("shard", "ddp")}
    assert legend(plot, "color") == sorted(ends, key=lambda name: -ends[name]) == ["ddp", "shard"]


def test_a_break_even_needs_an_axis_of_counts() -> None:
    assert draw("break-even", SPEEDUPS[:3]) == []
    words = [replace(r, params={"dtype": r.params["tokens"] * "x"}) for r in GALLERY["break-even"]]
    assert draw("break-even", words) == []


# Samples


def test_samples_have_their_warmup_shaded_and_their_median_drawn() -> None:
    (plot,) = draw("samples")
    assert plot.data["warmup"] == [{"x": -0.5, "x2": 1.5, "text": "warm-up"}]
    (line,) = plot.data["medians"]
    assert (line["x"], line["x2"], line["y"]) == (2, 19, 11)
    points = series(plot, "a")
    assert len(points) == 20
    assert points[1]["tip"] == "a, round 1\n20.0 ms, warm-up"
    assert points[2]["tip"] == "a, round 2\n10.0 ms"
    assert axis(plot, "y")["title"] == "time of a run, ms"
    assert "type" not in axis(plot, "y")["scale"]
    assert plot.can_zoom


def test_a_first_call_that_compiles_does_not_press_the_others_flat() -> None:
    (record,) = SAMPLES
    times = [30e9, *record.samples_ns["call"][1:]]
    (plot,) = draw("samples", [replace(record, samples_ns={"call": times})])
    assert axis(plot, "y")["scale"]["type"] == "log"


@pytest.mark.parametrize("kind", ["samples", "distribution"])
def test_small_marks_differ_by_more_than_colour(kind: str) -> None:
    times = {"dense": 10, "a": 11, "b": 12, "c": 13}
    records = [
        r for v, n in times.items()
        for r in compare({v: 1}, "g", samples_ns={"call": [n * MS, (n + 0.5) * MS] * 10})
    ]  # fmt: skip
    plot, *_ = draw(kind, records)
    shapes = encodings(plot, "shape")[-1]["scale"]
    assert set(shapes["domain"]) == times.keys() == {p["series"] for p in plot.data["points"]}
    assert len(set(shapes["range"])) == len(times)


# Distributions


def test_two_modes_are_seen_as_two() -> None:
    (plot,) = draw("distribution")
    heights = {row["x"]: row["y"] - row["y2"] for row in plot.data["densities"]}
    top = max(heights.values())
    assert max(y for x, y in heights.items() if 13 < x < 17) < 0.6 * top
    for mode in (10, 20):
        assert max(y for x, y in heights.items() if abs(x - mode) < 1) > 0.9 * top
    assert len(plot.data["points"]) == 20
    assert texts(plot, "lanes", "note") == ["15.0 ms"]
    (line,) = plot.data["medians"]
    assert line["x"] == 15


def test_equal_times_have_a_distribution_too() -> None:
    (plot,) = draw("distribution", [make_record()])
    values = [v for row in plot.data["densities"] for v in (row["x"], row["y"])]
    assert len(values) > 10
    assert all(math.isfinite(v) for v in values)


# The roofline


def test_the_roofline_has_slope_and_roof_and_points_below() -> None:
    (plot,) = draw("roofline")
    slope, roof = plot.data["roofs"]
    assert slope["text"] == "memory, 10.0 GB/s"
    assert roof["text"] == "float32, 100 GFLOP/s"
    assert slope["y"] == pytest.approx(1e10 * slope["x"])
    assert slope["y2"] == pytest.approx(1e10 * slope["x2"])
    assert (roof["x"], roof["y"], roof["y2"]) == (pytest.approx(10), 1e11, 1e11)
    (point,) = plot.data["points"]
    assert (point["x"], point["y"]) == (5, 5e9)
    # At 5 FLOPs a byte, memory allows 50 GFLOP/s.
    assert point["tip"] == ("a\n5.00 GFLOP/s at 5.00 FLOPs a byte\n10 % of what its roof allows")


def test_cases_that_only_move_bytes_are_below_the_memory() -> None:
    (plot,) = draw("roofline", [add_peaks(replace(INTENSE, flops={}), 1e11, 1e10)])
    (roof,) = plot.data["roofs"]
    assert (roof["text"], roof["y"], roof["y2"]) == ("memory, 10.0 GB/s", 1e10, 1e10)
    (point,) = plot.data["points"]
    assert (point["x"], point["y"]) == (1e9, 1e9)
    assert point["tip"].endswith("10 % of the memory's rate")


def test_bytes_of_a_training_job_follow_from_it() -> None:
    (plot,) = draw("roofline", [add_peaks(make_step(), 1e11, 1e10)])
    (point,) = plot.data["points"]
    assert 1 < point["x"] < 100


def test_a_data_sheet_has_limits_too() -> None:
    gpu = {"torch": {"gpu": {"name": "NVIDIA A100-SXM4-80GB"}}}
    flops = {"call": {"bfloat16": 5e9}}
    record = replace(INTENSE, flops=flops, environment=gpu, settings=Settings(device="cuda"))
    (plot,) = draw("roofline", [record])
    assert "data sheet" in plot.caption
    assert [roof["text"] for roof in plot.data["roofs"]][1] == "bfloat16, 312 TFLOP/s"


@pytest.mark.parametrize(
    "suite", ["activations", "attention", "dyad", "steps", "switchback", "training"]
)
def test_every_suite_has_a_roofline(suite: str) -> None:
    """Of a plain case of its own: its FLOPs, bytes and job as a run would record them."""
    found = load_suite(BUILT_IN / f"{suite}.py")
    case = next(case for case in found.expand(quick=True) if case.variant == found.baseline)
    job = found.describe_job(case)
    record = make_record(
        suite=suite, variant=case.variant, params=dict(case.params), job=job,
        samples_ns={phase: [MS] * 20 for phase in ("forward", "backward", "optimizer")},
        flops=found.count_flops(case), bytes=found.count_bytes(case),
    )  # fmt: skip
    assert len(draw("roofline", [add_peaks(record, 1e11, 1e10)])) == 1


@pytest.mark.parametrize(
    "record",
    [
        INTENSE,
        add_peaks(replace(INTENSE, bytes={}), 1e11, 1e10),
        add_peaks(replace(INTENSE, flops={"call": {"int8": 1e9}}), 1e11, 1e10),
    ],
    ids=["no peaks", "no bytes", "another dtype"],
)
def test_without_all_that_it_needs_there_is_no_roofline(record: object) -> None:
    assert draw("roofline", [record]) == []  # type: ignore[list-item]


# Parts


def test_parts_follow_each_other_and_add_up() -> None:
    (plot,) = draw("parts")
    bars = {bar["part"]: bar for bar in plot.data["bars"]}
    # A tenth of an instrumented run is a tenth of a plain one.
    assert {name: (bar["start"], bar["end"]) for name, bar in bars.items()} == {
        "forward, attention": (0, pytest.approx(0.1)),
        "forward, rest": (pytest.approx(0.1), pytest.approx(0.25)),
        "backward, attention": (pytest.approx(0.25), pytest.approx(0.5)),
        "backward, rest": (pytest.approx(0.5), pytest.approx(1)),
    }
    assert bars["backward, rest"]["tip"] == "a\nbackward, rest: 4.00 ms, 50.0 %"
    assert axis(plot, "x")["title"] == "share of a run"
    assert legend(plot, "fill") == list(bars)
    (strokes,) = encodings(plot, "stroke")
    inks = dict(zip(bars, strokes["scale"]["range"], strict=True))
    assert inks["forward, attention"] == inks["forward, rest"] != inks["backward, rest"]
    assert len(set(encodings(plot, "fill")[0]["scale"]["range"])) == 4


def test_regions_never_leave_their_phase() -> None:
    (record,) = PARTS
    region = replace(record.regions["forward/attention"], samples_ns=[9 * MS] * 20)
    (plot,) = draw("parts", [replace(record, regions={"forward/attention": region})])
    bars = {bar["part"]: bar for bar in plot.data["bars"]}
    assert bars["forward, attention"]["end"] == pytest.approx(0.25)
    assert bars["backward"]["start"] == pytest.approx(0.25)


def test_parts_add_up_to_the_number_next_to_them() -> None:
    """Medians of phases do not add up to the median of whole runs."""
    forward = [1 * MS, 5 * MS] * 9 + [1 * MS, 1 * MS]
    backward = [9 * MS, 1 * MS] * 9 + [9 * MS, 9 * MS]
    record = make_record(samples_ns={"forward": forward, "backward": backward})
    (plot,) = draw("parts", [record])
    times = [bar["tip"].rpartition(": ")[2].split(" ms")[0] for bar in plot.data["bars"]]
    assert sum(map(float, times)) == pytest.approx(10, rel=0.01)
    assert texts(plot, "lanes", "note")[0].startswith("10")
    assert plot.data["bars"][-1]["end"] == pytest.approx(1)


def test_one_phase_has_no_parts() -> None:
    assert draw("parts", [make_record()]) == []


# Throughput, utilisation, scaling


def test_throughput_is_drawn_over_size_and_over_context() -> None:
    over_size, over_context = draw("throughput")
    assert over_size.title == "Throughput by parameters"
    assert set(legend(over_size, "color")) == {"context=32", "context=64"}
    assert [p["x"] for p in series(over_size, "context=32")] == [1e6, 1e8]
    assert over_context.title == "Throughput by context"
    assert [p["y"] for p in series(over_context, "small")] == pytest.approx([1000, 1000])
    assert axis(over_context, "y")["title"] == "throughput, tokens/s"
    assert axis(over_context, "y")["scale"]["zero"]


def test_what_has_no_axis_of_numbers_is_drawn_in_lanes() -> None:
    (plot,) = draw("throughput", SIZES[:1])
    assert texts(plot, "lanes", "note") == ["1.00 ktokens/s"]
    assert [point["x"] for point in plot.data["points"]] == pytest.approx([1000])


def test_many_lines_are_divided_over_plots() -> None:
    records = [
        replace(
            r,
            case_id=f"{r.case_id} {batch}",
            group_id=f"{r.group_id} {batch}",
            params={**r.params, "b": batch},
        )
        for batch in "vwxyz"
        for r in SIZES
    ]
    plots = draw("throughput", records)
    assert len(plots) == 2 * 10
    assert all(len(legend(plot, "color")) == 1 for plot in plots)


def test_utilisation_is_a_share_of_the_peak_that_is_known() -> None:
    plot, _ = draw("mfu")
    assert plot.title == "Share of the measured peak by parameters"
    assert plot.data["points"][0]["y"] == pytest.approx(0.5)
    assert "50.0 % [50.0 %, 50.0 %]" in plot.data["points"][0]["tip"]
    assert axis(plot, "y")["axis"]["labelExpr"] == "format(datum.value, '~%')"
    assert draw("mfu", SIZES) == []


def test_scaling_has_an_ideal_line() -> None:
    (plot,) = draw("scaling")
    (ideal,) = plot.data["ideal"]
    assert (ideal["x"], ideal["y"]) == (1, pytest.approx(1e4))
    assert (ideal["x2"], ideal["y2"], ideal["text"]) == (4, pytest.approx(4e4), "ideal")
    ddp = series(plot, "ddp")
    assert [p["y"] for p in ddp] == pytest.approx([1e4, 1.6e4, 400 / 0.0175])
    assert "16.0 ktokens/s" in ddp[1]["tip"]
    assert ddp[1]["tip"].endswith("\n80 % of ideal")
    assert series(plot, "shard")[-1]["tip"].endswith("\n100 % of ideal")
    assert draw("scaling", [r for r in JOBS if r.params["ranks"] == 2]) == []


# Memory


def test_memory_has_bars_of_what_was_predicted_and_marks_of_what_was_measured() -> None:
    (plot,) = draw("memory")
    assert legend(plot, "fill") == ["parameters", "activations"]
    assert legend(plot, "shape") == ["forward"]
    assert axis(plot, "x")["title"] == "memory, MiB"
    assert [(bar["part"], bar["start"], bar["end"]) for bar in plot.data["bars"]] == [
        ("parameters", 0, 1), ("activations", 1, 2), ("parameters", 0, 2)
    ]  # fmt: skip
    (point,) = plot.data["points"]
    assert point["x"] == 2
    assert point["tip"] == "a, size=4\nforward, measured: 2.00 MiB"
    # What was not run has what was predicted, in brackets.
    assert texts(plot, "lanes", "note") == ["2.00 MiB", "(2.00 MiB)"]


# Losses


def test_losses_are_drawn_over_time_and_over_tokens() -> None:
    over_time, over_tokens = draw("losses")
    assert axis(over_time, "x")["title"] == "training time, seconds"
    # Dense ends after 400 steps of 10 ms, fast after 400 of 5 ms.
    assert series(over_time, "dense")[-1]["x"] == pytest.approx(4)
    assert series(over_time, "fast")[-1]["x"] == pytest.approx(2)
    assert axis(over_tokens, "x")["title"] == "tokens"
    assert axis(over_tokens, "x")["axis"]["labelExpr"] == "format(datum.value, '~s')"
    scale = encodings(over_time, "color")[0]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == {
        "fast": "#0d45de", "dense": "#333333"
    }  # fmt: skip


def test_first_losses_are_cut_off() -> None:
    losses = [100.0, 3.0, 2.5, 2.0]
    steps = [1.0, 200.0, 300.0, 400.0]
    plot, _ = draw("losses", [trained("dense", 10e6, losses, steps)])
    assert max(point["y"] for point in plot.data["points"]) == 3.0
    assert plot.data["points"][0]["y"] == 3.0


def test_curves_without_tokens_are_drawn_over_time_only() -> None:
    curves = {"step": [1.0, 2.0], "validation_loss": [2.0, 1.0]}
    (plot,) = draw("losses", [trained("dense", 5e6, [], curves=curves)])
    assert plot.title == "Validation loss over training time"


def test_losses_of_a_job_are_drawn_over_steps_on_request_only() -> None:
    job = make_record(curves={"step": [1.0, 2.0], "loss": [2.0, 1.0]})
    (plot,) = draw("losses", [job])
    assert plot.title == "Loss over steps"
    assert choose_plots(summarize([job])) == []


# The choice


@pytest.mark.parametrize(
    ("records", "names"),
    [
        (SPEEDUPS, ["speedups"]),
        (compare({"dense": 1, "a": 2}), []),  # the table has one dot
        (GALLERY["break-even"], ["speedups", "break-even"]),
        (LOSSES, ["losses", "losses"]),
        (JOBS, ["speedups", "break-even", "scaling"]),
        (SIZES, ["throughput"]),
        (GALLERY["memory"], ["memory"]),
        (GALLERY["roofline"], ["breakdown", "roofline"]),
        (GALLERY["breakdown"], ["parts", "breakdown", "roofline"]),
        (SAMPLES, []),
        ([], []),
    ],
)
def test_few_plots_stand_next_to_a_table(records: list, names: list[str]) -> None:  # type: ignore[type-arg]
    assert [plot.name for plot in choose_plots(summarize(records))] == names


def test_failures_are_not_drawn() -> None:
    failed = make_record(status="crash", samples_ns={}, rounds=[], calls_per_sample=[])
    rows = summarize([failed])
    assert choose_plots(rows) == []
    assert all(list(kind.make(rows)) == [] for kind in KINDS.values())


@pytest.mark.parametrize("name", GALLERY)
def test_every_kind_is_named_and_drawn(name: str) -> None:
    assert {plot.name for plot in draw(name)} == {name}


def test_a_prediction_is_drawn_over_what_was_measured() -> None:
    (plot,) = draw("predictions")
    inside, outside = plot.data["points"]
    assert (inside["low"], inside["x"], inside["high"]) == pytest.approx((0.8, 0.9, 1.25))
    assert inside["in"]
    assert not outside["in"]
    assert texts(plot, "lanes", "note") == ["10.0 ms", "10.0 ms"]


def test_a_step_of_a_pipeline_has_a_lane_for_each_rank() -> None:
    (plot,) = draw("ranks")
    assert texts(plot, "lanes") == ["rank 0, stage 0", "rank 1, stage 1"]
    assert texts(plot, "lanes", "note") == ["70 %", "40 %"]  # of steps, in which they compute
    bars = plot.data["bars"]
    assert [bar["text"] for bar in bars if bar["part"] == "forward"] == ["0", "1", "0"]
    waited = [(bar["start"], bar["end"]) for bar in bars if bar["part"] == "pipeline bubble"]
    assert waited == [(6, 8), (0, 3)]
    assert "receive from rank 1" in bars[2]["tip"]
    assert "stage 0, micro-batch 1" in bars[1]["tip"]


def test_the_gallery_has_every_kind() -> None:
    assert GALLERY.keys() == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_missing_is_told_in_a_sentence(name: str) -> None:
    sentence = describe_missing(name)
    assert "\n" not in sentence
    assert name in sentence
    assert "measure such with: flopwatch" in sentence


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no plot 'pie'; there are speedups, break-even"):
        list(make_plots("pie", []))


def test_results_that_no_machine_gives_are_drawn_or_left_out() -> None:
    odd = {
        "step": [3.0, -1.0, 3.0],
        "tokens": [0.0, 0.0, 0.0],
        "validation_loss": [1e308, -1e308, 0],
    }
    plots = draw("losses", [DENSE, trained("odd", 5e6, [], curves=odd)])
    assert plots
    assert all(math.isfinite(p["y"]) for plot in plots for p in plot.data["points"])


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [("switchback", "parts", 29), ("dyad", "parts", 1), ("mosaic", "breakdown", 3)],
)
def test_published_means_are_not_called_medians(name: str, kind: str, number: int) -> None:
    plots = draw_published(name, kind)
    assert len(plots) == number
    for plot in plots:
        assert plot.data["bars"]
        assert "median" not in plot.caption.lower()
        assert "mean time of whole runs" in plot.caption


def test_rows_of_the_published_breakdown_can_be_told_apart() -> None:
    plots = draw_published("mosaic", "breakdown")
    assert plots
    for plot in plots:
        shown = texts(plot, "lanes")
        assert len(set(shown)) == len(shown)
        assert not any("…" in text for text in shown)
        (heading,) = texts(plot, "headings")
        assert "seq_len, " in heading


@pytest.mark.parametrize("kind", ["breakdown", "parts", "memory"])
def test_bars_end_where_their_numbers_say(kind: str) -> None:
    for plot in draw(kind):
        lanes = itertools.groupby(plot.data["bars"], key=lambda bar: bar["y"])
        for _, bars in lanes:
            right = [bar for bar in bars if bar["end"] > 0]
            assert right[0]["start"] == 0
            assert all(a["end"] == b["start"] for a, b in itertools.pairwise(right))


def test_the_breakdown_ends_at_the_measured_time() -> None:
    (plot,) = draw("breakdown")
    by_lane = [[bar for bar in plot.data["bars"] if bar["y"] == y] for y in (0, -1)]
    sums = [sum(bar["end"] - bar["start"] if bar["end"] > 0 else bar["start"] - bar["end"]
                for bar in bars) for bars in by_lane]  # fmt: skip
    assert sums == pytest.approx([1, 1], rel=1e-5)
    assert texts(plot, "lanes", "note") == ["10.0 ms", "1.00 ms"]
    assert any("faster than" in bar["part"] for bar in by_lane[1])
