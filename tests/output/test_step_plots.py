"""Plots of monitored runs: what they show, and that they stay small."""

from __future__ import annotations

import json

import numpy as np

from flopwatch.analysis.summary import summarize
from flopwatch.output.page import render_page
from flopwatch.output.plots import KINDS, Plot
from flopwatch.records.record import Record
from tests.monitor_tools import MS, STALLS, Loop, make_stalled_run
from tests.plot_tools import draw, legend, texts


def draw_one(name: str, records: list[Record]) -> Plot:
    (plot,) = draw(name, records)
    return plot


def test_the_timeline_marks_stalls_by_cause_pauses_and_restarts() -> None:
    plot = draw_one("timeline", make_stalled_run())
    assert len(plot.data["slow"]) == len(STALLS)
    assert legend(plot, "color") == [
        "data", "garbage collection", "other ranks", "after a pause", "of unknown cause",
    ]  # fmt: skip
    assert sorted(set(texts(plot, "spans"))) == ["checkpoint", "evaluation", "restart"]
    (late,) = [mark for mark in plot.data["slow"] if mark["series"] == "other ranks"]
    assert "rank 3 came late" in late["tip"]
    restart_span = next(span for span in plot.data["spans"] if span["text"] == "restart")
    assert restart_span["x"] < restart_span["x2"]


def test_a_very_long_run_is_thinned_without_hiding_a_stall() -> None:
    loop = Loop(100_000, seed=3)
    places = np.random.default_rng(0).choice(np.arange(100, 100_000), 50, replace=False)
    for place in places.tolist():
        loop.stall(place, "data", 80 * MS)
    records = [loop.record()]
    plot = draw_one("timeline", records)
    marked = {int(mark["tip"].split()[1].replace(",", "")) for mark in plot.data["slow"]}
    assert marked == set(places.tolist())
    assert len(plot.data["points"]) <= 420
    assert "shortest and the longest" in plot.caption
    page = render_page(records)
    assert len(page) - len(render_page([Loop(500).record()])) < 100_000


def test_bars_of_the_mean_step_and_of_the_wall_clock_are_whole() -> None:
    records = make_stalled_run()
    for name, lanes in (("mean-step", 1), ("goodput", 3)):
        plot = draw_one(name, records)
        ends = [
            max(b["end"] for b in plot.data["bars"] if b["y"] == -lane) for lane in range(lanes)
        ]
        assert np.allclose(ends, 1)
    assert texts(draw_one("goodput", records), "lanes") == ["start 1", "start 2", "all"]
    assert texts(draw_one("goodput", [Loop(50).record()]), "lanes") == ["wall clock"]
    parts = {bar["part"] for bar in draw_one("goodput", records).data["bars"]}
    assert parts >= {"training", "down", "repeated steps", "first steps", "pauses", "slow steps"}


def test_ranks_show_whom_the_others_wait_for() -> None:
    plot = draw_one("stragglers", make_stalled_run())
    lost = {bar["tip"].partition("\n")[0]: bar["end"] for bar in plot.data["bars"]
            if bar["part"] == "others wait for it"}  # fmt: skip
    assert max(lost, key=lambda rank: lost[rank]) == "rank 2"
    assert "Rank 2 makes the others wait" in plot.caption


def test_a_run_of_one_step_or_none_is_drawn_or_left_out() -> None:
    for record in (Loop(1).record(), Loop(3).record(ranks=[])):
        rows = summarize([record])
        for kind in KINDS.values():
            for plot in kind.make(rows):
                json.dumps(plot.to_spec(), allow_nan=False)
        assert render_page([record])
