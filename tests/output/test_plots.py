"""Plots as data: what is drawn, where, and with what words."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch.analysis.summary import summarize
from flopwatch.errors import UsageError
from flopwatch.output.plots import KINDS, choose_plots
from flopwatch.output.plots.axes import (
    BYTES,
    COUNT,
    RATIO,
    TIME,
    choose_log_ticks,
    choose_ticks,
    label_ticks,
    make_axis,
    make_count_axis,
)
from flopwatch.output.plots.plot import HUGE, MOST_POINTS, Plot, Point, Series, thin
from flopwatch.output.plots.plot_catalog import describe_missing, make_plots
from flopwatch.output.plots.plot_frame import clean, shorten, spread
from flopwatch.output.plots.shapes import choose_dash, choose_ink, choose_marker
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
    compare,
    draw,
)

finite = st.floats(min_value=-HUGE, max_value=HUGE)
ratios = st.floats(min_value=1 / HUGE, max_value=HUGE)


def find(plot: Plot, name: str) -> Series:
    (one,) = [one for one in plot.series if one.name == name]
    return one


def ticks(plot: Plot) -> tuple[list[str], list[str]]:
    return [t.text for t in plot.x.ticks], [t.text for t in plot.y.ticks]


# Axes


@given(finite, finite)
def test_ticks_are_round_few_and_enclose(one: float, other: float) -> None:
    low, high = sorted([one, other])
    found = choose_ticks(low, high)
    assert 2 <= len(found) <= 9
    assert found == sorted(set(found))
    slack = 1e-8 * (found[-1] - found[0])
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert max(map(len, label_ticks(found))) <= 13


@given(ratios, ratios)
def test_ticks_of_ratios_are_few_and_enclose(one: float, other: float) -> None:
    low, high = sorted([one, other])
    found = choose_log_ticks(low, high)
    assert 2 <= len(found) <= 10
    assert found == sorted(set(found))
    assert 0 < found[0] <= low * 1.01
    assert found[-1] >= high * 0.99


@given(st.lists(ratios, min_size=1, max_size=4), st.booleans())
def test_every_value_has_its_place_on_an_axis(values: list[float], is_log: bool) -> None:
    axis = make_axis("time", values, TIME, is_log=is_log)
    assert axis.low < axis.high
    assert len(axis.ticks) >= 2
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)


@pytest.mark.parametrize(
    ("values", "unit", "is_log", "label", "texts"),
    [
        ([0, 12.4 * MS], TIME, False, "x, ms", ["0", "2", "4", "6", "8", "10", "12", "14"]),
        ([0, 3 * 2**30], BYTES, False, "x, GiB", ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]),
        ([0.4, 6], RATIO, True, "x", ["0.5x", "1x", "2x", "5x"]),
        ([1e5, 5e9], TIME, True, "x", ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]),
        ([100, 100], COUNT, False, "x", ["94", "96", "98", "100", "102", "104", "106"]),
    ],
)
def test_axes_have_units_that_people_read(
    values: list[float], unit: object, is_log: bool, label: str, texts: list[str]
) -> None:
    axis = make_axis("x", values, unit, is_log=is_log)  # type: ignore[arg-type]
    assert axis.label == label
    assert [tick.text for tick in axis.ticks] == texts


def test_an_axis_of_counts_has_a_tick_at_each() -> None:
    axis = make_count_axis("tokens", [64, 16, 64, 256])
    assert [tick.text for tick in axis.ticks] == ["16", "64", "256"]
    low, middle, high = (axis.place(value) for value in (16, 64, 256))
    assert middle - low == pytest.approx(high - middle)


# Words and styles


@given(st.lists(st.floats(0, 100), max_size=6).map(sorted))
def test_labels_keep_their_distance(wanted: list[float]) -> None:
    placed = spread(wanted, 0, 100, 16)
    assert all(b - a >= 16 - 1e-9 for a, b in itertools.pairwise(placed))
    assert all(-1e-9 <= place <= 100 for place in placed)


def test_long_names_keep_their_ends_and_odd_characters_go() -> None:
    assert shorten("a" * 32) == "a" * 32
    assert len(shorten("switchback:rowwise:" + "x" * 30 + ":int8")) == 32
    assert shorten("switchback:rowwise:" + "x" * 30 + ":int8").endswith(":int8")
    assert clean("a\x00b\nc\ud800") == "a\ufffdb\ufffdc\ufffd"


def test_sixteen_series_can_be_told_apart_without_their_colours_too() -> None:
    styles = [(choose_ink(n), choose_dash(n), choose_marker(n)) for n in range(16)]
    assert len(set(styles)) == 16
    assert len({style[1:] for style in styles}) == 16


def test_thinning_keeps_ends_and_outliers() -> None:
    points = tuple(Point(x=n, y=100.0 if n == 5001 else n % 7) for n in range(10_000))
    kept = thin(points)
    assert len(kept) <= MOST_POINTS
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert points[5001] in kept
    assert [p.x for p in kept] == sorted(p.x for p in kept)
    assert thin(points[:MOST_POINTS]) == points[:MOST_POINTS]


# Speedups


def test_speedups_stand_in_lanes_below_their_case() -> None:
    (plot,) = draw("speedups")
    assert plot.title == "Speedup over dense"
    assert plot.subject == "demo"
    assert [heading.text for heading in plot.headings] == ["size=4", "size=8"]
    assert [(t.text, t.series) for t in plot.y.ticks] == [("fast", 0), ("slow", 1), ("fast", 0)]
    assert [note.text for note in plot.notes] == ["2.00x", "0.50x", "2.50x"]
    assert [p.x for p in find(plot, "fast").points] == [2.0, 2.5]
    assert find(plot, "slow").points[0].tip == "slow, size=4: 0.50x [0.50, 0.50]"
    assert plot.lanes == 5
    lanes = [t.value for t in plot.y.ticks] + [h.y for h in plot.headings]
    assert sorted(lanes) == [-4, -3, -2, -1, 0]
    assert plot.keys == ()


def test_limits_and_comparisons_that_are_not_comparable_are_marked_and_explained() -> None:
    dense, fast = compare({"dense": 1, "fast": 2})
    dense = replace(dense, flops={"call": {"float32": 3e6}})
    fast = replace(fast, flops={"call": {"float32": 1e6}}, conditions={"autocast": "on"})
    (plot,) = draw("speedups", [dense, fast])
    (point,) = find(plot, "fast").points
    assert point.limit == pytest.approx(3)
    assert point.is_hollow
    assert point.tip.endswith(", limit 3.00x")
    assert [key.mark for key in plot.keys] == ["limit", "hollow"]
    assert plot.x.low <= 1
    assert plot.x.high >= 3


def test_with_one_rival_lanes_are_named_for_their_cases() -> None:
    records = [*compare({"dense": 1, "a": 2}, "1", params={"size": 1}),
               *compare({"dense": 1, "a": 3}, "2", params={"size": 2})]  # fmt: skip
    (plot,) = draw("speedups", records)
    assert [tick.text for tick in plot.y.ticks] == ["size=1", "size=2"]
    assert plot.headings == ()


def test_many_cases_share_a_lane_a_variant() -> None:
    records = [
        record
        for n in range(500)
        for record in compare({"dense": 1, "a": 1 + n / 100, "b": 0.5}, str(n), params={"n": n})
    ]
    (plot,) = draw("speedups", records)
    assert plot.lanes == 2
    assert [note.text for note in plot.notes] == ["1.00x to 5.99x", "0.50x"]
    drawn = find(plot, "a").points
    assert len(drawn) == MOST_POINTS
    assert (min(p.x for p in drawn), max(p.x for p in drawn)) == (1.0, pytest.approx(5.99))
    assert all(-0.5 < p.y < 0.5 for p in drawn)


def test_without_a_baseline_there_are_no_speedups() -> None:
    assert draw("speedups", SPEEDUPS[1:3]) == []


# BreakEvens


def test_a_break_even_marks_where_it_begins_to_pay() -> None:
    (plot,) = draw("break-even")
    assert plot.title == "Speedup over dense by tokens"
    assert ticks(plot)[0] == ["16", "64", "256", "1024"]
    fast = find(plot, "fast")
    assert [(p.x, p.is_ringed) for p in fast.points] == [
        (16, False), (64, False), (256, True), (1024, False)
    ]  # fmt: skip
    assert plot.caption.startswith("What pays: fast from tokens=256 on.")
    down, along = plot.references
    (point, one), (_, bottom) = down.points
    assert 64 < point < 256
    assert (one, bottom) == (1.0, plot.y.low)
    assert along.points[0][0] <= point <= along.points[1][0]
    assert down.series == plot.series.index(fast)
    assert {p.y for p in find(plot, "dense").points} == {1.0}


def test_a_break_even_needs_an_axis_of_counts() -> None:
    assert draw("break-even", SPEEDUPS[:3]) == []
    words = [replace(r, params={"dtype": r.params["tokens"] * "x"}) for r in GALLERY["break-even"]]
    assert draw("break-even", words) == []


# Samples


def test_samples_have_their_warmup_shaded_and_their_median_drawn() -> None:
    (plot,) = draw("samples")
    (span,) = plot.spans
    assert (span.start, span.end) == (0, 1.5)
    (line,) = plot.references
    assert line.points == ((2, 11 * MS), (19, 11 * MS))
    (one,) = plot.series
    assert len(one.points) == 20
    assert one.points[1].tip == "a, round 1: 20.0 ms, warm-up"
    assert one.points[2].tip == "a, round 2: 10.0 ms"
    assert not plot.y.is_log
    assert one.end == 11 * MS


def test_a_first_call_that_compiles_does_not_press_the_others_flat() -> None:
    (record,) = SAMPLES
    times = [30e9, *record.samples_ns["call"][1:]]
    (plot,) = draw("samples", [replace(record, samples_ns={"call": times})])
    assert plot.y.is_log


# Distributions


def test_two_modes_are_seen_as_two() -> None:
    (plot,) = draw("distribution")
    (one,) = plot.series
    heights = dict(one.outline)
    top = max(heights.values())
    floor = min(heights.values())
    between = [y for x, y in heights.items() if 13 * MS < x < 17 * MS]
    assert max(between) < floor + 0.6 * (top - floor)
    for mode in (10 * MS, 20 * MS):
        assert max(y for x, y in heights.items() if abs(x - mode) < MS) > 0.9 * top
    assert len(one.points) == 20
    assert [note.text for note in plot.notes] == ["15.0 ms"]


def test_equal_times_have_a_distribution_too() -> None:
    (plot,) = draw("distribution", [make_record()])
    assert all(math.isfinite(v) for point in plot.series[0].outline for v in point)


# The roofline


def test_the_roofline_has_slope_and_roof_and_points_below() -> None:
    (plot,) = draw("roofline")
    slope, roof = plot.references
    assert slope.text == "memory, 10.0 GB/s"
    assert roof.text == "float32, 100 GFLOP/s"
    assert all(y == pytest.approx(1e10 * x) for x, y in slope.points)
    assert roof.points[0] == (pytest.approx(10), 1e11)
    (point,) = plot.series[0].points
    assert (point.x, point.y) == (5, 5e9)
    # At 5 FLOPs a byte, memory allows 50 GFLOP/s.
    assert point.tip == "a: 5.00 GFLOP/s at 5.00 FLOPs a byte, 10 % of what its roof allows"


@pytest.mark.parametrize(
    "record",
    [
        INTENSE,
        add_peaks(replace(INTENSE, bytes={}), 1e11, 1e10),
        add_peaks(replace(INTENSE, flops={}), 1e11, 1e10),
        add_peaks(replace(INTENSE, flops={"call": {"int8": 1e9}}), 1e11, 1e10),
    ],
    ids=["no peaks", "no bytes", "no flops", "another dtype"],
)
def test_without_all_that_it_needs_there_is_no_roofline(record: object) -> None:
    assert draw("roofline", [record]) == []  # type: ignore[list-item]


# Parts


def test_parts_follow_each_other_and_add_up() -> None:
    (plot,) = draw("parts")
    bars = {one.name: one.bars[0] for one in plot.series}
    # A tenth of an instrumented run is a tenth of a plain one.
    assert {name: (bar.start / MS, bar.end / MS) for name, bar in bars.items()} == {
        "forward, attention": (0, pytest.approx(0.8)),
        "forward, rest": (pytest.approx(0.8), pytest.approx(2)),
        "backward, attention": (pytest.approx(2), pytest.approx(4)),
        "backward, rest": (pytest.approx(4), pytest.approx(8)),
    }
    assert bars["backward, rest"].tip == "a: backward, rest 4.00 ms, 50.0 %"
    inks = {one.name: one.number for one in plot.series}
    assert inks["forward, attention"] == inks["forward, rest"] != inks["backward, rest"]


def test_regions_never_leave_their_phase() -> None:
    (record,) = PARTS
    region = replace(record.regions["forward/attention"], samples_ns=[9 * MS] * 20)
    (plot,) = draw("parts", [replace(record, regions={"forward/attention": region})])
    assert find(plot, "forward, attention").bars[0].end == pytest.approx(2 * MS)
    assert find(plot, "backward").bars[0].start == pytest.approx(2 * MS)


def test_one_phase_has_no_parts() -> None:
    assert draw("parts", [make_record()]) == []


# Throughput, utilisation, scaling


def test_throughput_is_drawn_over_size_and_over_context() -> None:
    over_size, over_context = draw("throughput")
    assert over_size.title == "Throughput by parameters"
    assert {one.name for one in over_size.series} == {"context=32", "context=64"}
    assert [p.x for p in over_size.series[0].points] == [1e6, 1e8]
    assert over_context.title == "Throughput by context"
    assert [p.y for p in over_context.series[0].points] == pytest.approx([1000, 1000])
    assert over_context.y.label == "throughput, ktokens/s"


def test_what_has_no_axis_of_numbers_is_drawn_in_lanes() -> None:
    (plot,) = draw("throughput", SIZES[:1])
    assert plot.lanes == 1
    assert [note.text for note in plot.notes] == ["1.00 ktokens/s"]


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
    assert all(len(plot.series) == 1 for plot in plots)


def test_utilisation_is_a_share_of_the_peak_that_is_known() -> None:
    plot, _ = draw("mfu")
    assert plot.title == "Share of the measured peak by parameters"
    assert plot.series[0].points[0].y == pytest.approx(0.5)
    assert plot.series[0].points[0].tip.endswith(": 50.0 %")
    assert draw("mfu", SIZES) == []


def test_scaling_has_an_ideal_line() -> None:
    (plot,) = draw("scaling")
    (ideal,) = plot.references
    assert ideal.points == ((1, pytest.approx(1e4)), (4, pytest.approx(4e4)))
    ddp = find(plot, "ddp")
    assert [p.y for p in ddp.points] == pytest.approx([1e4, 1.6e4, 400 / 0.0175])
    assert ddp.points[1].tip.endswith("16.0 ktokens/s, 80 % of ideal")
    assert find(plot, "shard").points[-1].tip.endswith(", 100 % of ideal")
    assert draw("scaling", [r for r in JOBS if r.params["ranks"] == 2]) == []


# Memory


def test_memory_has_bars_of_what_was_predicted_and_marks_of_what_was_measured() -> None:
    (plot,) = draw("memory")
    assert [one.name for one in plot.series] == [
        "parameters", "activations", "forward, measured"
    ]  # fmt: skip
    assert [(bar.start, bar.end) for bar in find(plot, "activations").bars] == [(2**20, 2**21)]
    (point,) = find(plot, "forward, measured").points
    assert point.x == 2**21
    assert point.tip == "a, size=4: forward, measured 2.00 MiB"
    # What was not run has what was predicted, in brackets.
    assert [note.text for note in plot.notes] == ["2.00 MiB", "(2.00 MiB)"]


# Losses


def test_losses_are_drawn_over_time_and_over_tokens() -> None:
    over_time, over_tokens = draw("losses")
    assert over_time.x.label == "training time, seconds"
    # Dense ends after 400 steps of 10 ms, fast after 400 of 5 ms.
    assert find(over_time, "dense").points[-1].x == pytest.approx(4e9)
    assert find(over_time, "fast").points[-1].x == pytest.approx(2e9)
    assert over_tokens.x.label == "tokens"
    assert over_tokens.x.ticks[-1].text.endswith("k")
    assert {one.name: one.number for one in over_time.series} == {"dense": 0, "fast": 1}


def test_first_losses_are_cut_off() -> None:
    losses = [100.0, 3.0, 2.5, 2.0]
    steps = [1.0, 200.0, 300.0, 400.0]
    plot, _ = draw("losses", [trained("dense", 10e6, losses, steps)])
    (one,) = plot.series
    assert one.points[0].y == 3.0
    assert plot.y.high < 4


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
        (compare({"dense": 1, "a": 2}), []),  # one dot is told by the table
        (GALLERY["break-even"], ["speedups", "break-even"]),
        (LOSSES, ["losses", "losses", "parts"]),
        (JOBS, ["speedups", "break-even", "scaling"]),
        (SIZES, ["throughput"]),
        (GALLERY["memory"], ["memory"]),
        (GALLERY["roofline"], ["roofline", "breakdown"]),
        (GALLERY["breakdown"], ["parts", "breakdown"]),
        (SAMPLES, []),
        ([], []),
    ],
)
def test_few_plots_stand_beside_a_table(records: list, names: list[str]) -> None:  # type: ignore[type-arg]
    assert [plot.name for plot in choose_plots(summarize(records))] == names


def test_failures_are_not_drawn() -> None:
    failed = make_record(status="crash", samples_ns={}, rounds=[], calls_per_sample=[])
    rows = summarize([failed])
    assert choose_plots(rows) == []
    assert all(list(kind.make(rows)) == [] for kind in KINDS.values())


@pytest.mark.parametrize("name", GALLERY)
def test_every_kind_is_named_and_drawn(name: str) -> None:
    assert {plot.name for plot in draw(name)} == {name}


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
    assert draw("losses", [DENSE, trained("odd", 5e6, [], curves=odd)])
