"""Monitored training loops: their steps over time with stalls and pauses, the mean step, what the
wall clock went to in each start, and ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flopwatch.analysis.goodput import StartTimes
from flopwatch.analysis.monitored_run import RunSummary
from flopwatch.analysis.monitored_steps import Start
from flopwatch.analysis.slow_steps import Cause
from flopwatch.analysis.summary import Row
from flopwatch.output.monitor_tables import describe_cause, describe_stragglers, name_cause
from flopwatch.output.plots.bar_plots import SHARE, stack_bars
from flopwatch.output.plots.channels import (
    DURATION,
    PICKED,
    TIME,
    TIP,
    Axis,
    lay_above,
    layer,
    make_axis,
    pick_by_legend,
    text,
    zoom,
)
from flopwatch.output.plots.lanes import Lanes, read_table
from flopwatch.output.plots.plot import MOST_POINTS, Plot, Values
from flopwatch.output.plots.theme import INKS, choose_colour, choose_shape
from flopwatch.output.units import format_duration, format_share, format_time, plural, printable

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

WIDE = 4.0
"""Times that differ more than this go on a logarithmic scale."""
MOST_MARKS = 150
"""Slow steps, and pauses, that are marked: those that lost most."""
MOST_STARTS = 20
MOST_RANKS = 32
LANE_PX = 24.0

STEP_SHARE = replace(SHARE, title="share of the mean step")
CLOCK_SHARE = replace(SHARE, title="share of the wall clock")

CAUSES: tuple[Cause, ...] = (
    "data", "garbage collection", "other ranks", "pause", "communication", "allocator retries",
    "throttling", "unknown",
)  # fmt: skip
"""In the order of the legend; each has its colour and shape in all plots."""
PART_STYLES = {
    "data": (5, 0), "forward": (1, 0), "loss": (1, 2), "backward": (1, 1),
    "communication": (4, 0), "optimizer": (3, 0), "other": (0, 3), "mean step": (0, 3),
}  # fmt: skip
CLOCK_STYLES = {
    "training": (1, 0), "slow steps": (2, 0), "first steps": (2, 2), "pauses": (5, 0),
    "outside of steps": (0, 3), "repeated steps": (4, 0), "start-up": (3, 2), "down": (0, 1),
}  # fmt: skip
"""Colour and shade."""


def make_timelines(rows: Sequence[Row]) -> Iterator[Plot]:
    for row in rows:
        if row.monitored is not None:
            yield _draw_timeline(row, row.monitored)


def _draw_timeline(row: Row, run: RunSummary) -> Plot:
    zero_s = run.starts[0].main.zero_unix_s
    times_ns = [start.step_ns for start in run.starts]
    lowest, highest = min(float(t.min()) for t in times_ns), max(float(t.max()) for t in times_ns)
    y = make_axis("time of a step", [lowest, highest], TIME, is_log=highest > WIDE * lowest)
    ends_s = [max(_read_end(start) - zero_s, 1e-3) for start in run.starts]
    x = make_axis("since the first start", [end * 1e9 for end in ends_s], DURATION)
    table = read_table([row])
    points = [point for start in run.starts for point in _thin_steps(start, run, zero_s, x, y)]
    slow = _mark_slow(run, zero_s, x, y)
    spans = [*_mark_pauses(run, zero_s, x), *_mark_downs(run, zero_s, x)]
    names = [name_cause(cause) for cause in CAUSES if cause in run.slow_causes]
    numbers = {name_cause(cause): n for n, cause in enumerate(CAUSES, 1)}
    xy = {"x": x.channel(grid=False), "y": y.channel("y")}
    looks = _style_causes(names, numbers)
    dot = {"type": "point", "size": 8, "strokeWidth": 0, "filled": True, "opacity": 0.55,
           "color": INKS.quiet, "clip": True}  # fmt: skip
    mark = {"type": "point", "size": 70, "filled": True, "opacity": 1, "clip": True}
    band = {"type": "rect", "opacity": 0.16, "color": choose_colour(5), "clip": True}
    top = {"x": xy["x"], "y": {"value": 0}}
    return table.make_plot(
        name="timeline",
        shared=run.name,
        title="Steps over time",
        caption=_describe_timeline(run, len(slow)),
        data={"points": points, "slow": slow, "spans": spans},
        layers=[
            layer("spans", band, {"x": xy["x"], "x2": {"field": "x2"}, **TIP}),
            text("spans", top, style="note", align="left", angle=90, dx=4, dy=-7,
                 where="datum.named"),
            layer("points", dot, {**xy, **TIP}, params=[zoom("x")]),
            layer("slow", mark, {**xy, **looks, "opacity": PICKED, **TIP},
                  params=[pick_by_legend("series")]),
        ],
        height=280,
    )  # fmt: skip


def _style_causes(names: Sequence[str], numbers: Mapping[str, int]) -> dict[str, Any]:
    ranges = {
        "color": [choose_colour(numbers[name]) for name in names],
        "shape": [choose_shape(numbers[name]) for name in names],
    }
    legend = {"title": None, **lay_above(names)}
    return {
        channel: {"field": "series", "type": "nominal", "legend": legend,
                  "scale": {"domain": list(names), "range": values}}
        for channel, values in ranges.items()
    }  # fmt: skip


def _describe_timeline(run: RunSummary, marked: int) -> str:
    left = len(run.slow) - marked
    some = f" Of {len(run.slow):,} slow steps, those that lost most are marked." if left else ""
    shaded = "pauses" + (" and times between starts" if len(run.starts) > 1 else "")
    thinned = ""
    if run.steps > MOST_POINTS:
        thinned = " Of neighbouring steps, the shortest and the longest are drawn."
    return (
        f"A dot is a step; slow ones are marked by their likely cause; {shaded} are shaded."
        f"{thinned}{some}"
    )


def _read_end(start: Start) -> float:
    return start.main.zero_unix_s + float(start.begin_ns[-1] + start.step_ns[-1]) / 1e9


def _thin_steps(start: Start, run: RunSummary, zero_s: float, x: Axis, y: Axis) -> Values:
    """The shortest and the longest of neighbours, so that no stall is lost. Of a million steps only
    these become points."""
    import numpy as np

    count = len(start.step_ns)
    room = max(20, MOST_POINTS * count // max(1, run.steps))
    if count <= room:
        places = np.arange(count)
    else:
        edges = np.linspace(0, count, room // 2 + 1).astype(int)
        pairs = [
            (low + int(np.argmin(start.step_ns[low:high])),
             low + int(np.argmax(start.step_ns[low:high])))
            for low, high in zip(edges[:-1], edges[1:], strict=True)
            if high > low
        ]  # fmt: skip
        places = np.unique(np.array(pairs))
    return [
        {
            "x": _place(start, place, zero_s, x),
            "y": y.scale(float(start.step_ns[place])),
            "tip": f"step {int(start.numbers[place]):,}\n{format_time(start.step_ns[place])}"
            + (", one of the first steps" if place < start.first_steps else ""),
        }
        for place in places.tolist()
    ]


def _place(start: Start, place: int, zero_s: float, x: Axis) -> float:
    return x.scale((start.main.zero_unix_s - zero_s) * 1e9 + float(start.begin_ns[place]))


def _mark_slow(run: RunSummary, zero_s: float, x: Axis, y: Axis) -> Values:
    worst = sorted(run.slow, key=lambda pair: -pair[1].excess_ns)[:MOST_MARKS]
    return [
        {
            "x": _place(start, step.place, zero_s, x),
            "y": y.scale(step.step_ns),
            "series": name_cause(step.cause),
            "tip": f"step {step.number:,}\n{format_time(step.step_ns)}, "
            f"{format_time(step.excess_ns)} more than usual\n{describe_cause(step)}",
        }
        for start, step in worst
    ]


def _mark_pauses(run: RunSummary, zero_s: float, x: Axis) -> Values:
    pauses = [
        ((start.main.zero_unix_s - zero_s) * 1e9 + event.begin_ns, event)
        for start in run.starts
        for event in start.main.events
        if event.kind == "pause"
    ]
    longest = sorted(pauses, key=lambda pair: -pair[1].duration_ns)[:MOST_MARKS]
    named = {event.name: begin for begin, event in sorted(longest, key=lambda p: -p[0])}
    return [
        {
            "x": x.scale(begin),
            "x2": x.scale(begin + event.duration_ns),
            "text": printable(event.name),
            "named": named[event.name] == begin and len(named) <= 4,
            "tip": f"pause: {printable(event.name)}\n{format_time(event.duration_ns)}",
        }
        for begin, event in longest
    ]


def _mark_downs(run: RunSummary, zero_s: float, x: Axis) -> Values:
    found = []
    for before, after in zip(run.starts, run.starts[1:], strict=False):
        begin_s = _read_end(before) - zero_s
        end_s = after.main.zero_unix_s + float(after.begin_ns[0]) / 1e9 - zero_s
        if end_s > begin_s:
            found.append(
                {
                    "x": x.scale(begin_s * 1e9),
                    "x2": x.scale(end_s * 1e9),
                    "text": "restart",
                    "named": len(run.starts) <= 5,
                    "tip": f"from the last step to the next start's first: "
                    f"{format_duration(end_s - begin_s)}",
                }
            )
    return found


def _lay_bars(row: Row, names: Sequence[str]) -> Lanes:
    """Lanes of one run, by names of their own."""
    placed = [(float(-place), row) for place in range(len(names))]
    words = [{"y": y, "text": name} for (y, _), name in zip(placed, names, strict=True)]
    return Lanes(
        table=read_table([row]), rows=placed, names=words, headings=[], count=float(len(names)),
        lane_px=LANE_PX,
    )  # fmt: skip


def _stack(lane: float, times: Mapping[str, float], subject: str) -> Values:
    """One bar, by shares of all of it; times are in nanoseconds."""
    total, start = sum(times.values()) or 1.0, 0.0
    bars = []
    for part, time_ns in times.items():
        share = time_ns / total
        bars.append(
            {
                "y": lane,
                "start": SHARE.scale(start),
                "end": SHARE.scale(start + share),
                "part": part,
                "text": part,
                "tip": f"{subject}\n{part}: {_write(time_ns)}, {format_share(share)}",
            }
        )
        start += share
    return bars


def _write(time_ns: float) -> str:
    return format_time(time_ns) if time_ns < 60e9 else format_duration(time_ns / 1e9)


def make_step_parts(rows: Sequence[Row]) -> Iterator[Plot]:
    """The mean step of each run, in parts."""
    for row in rows:
        run = row.monitored
        if run is None or not run.parts:
            continue
        lanes = _lay_bars(row, ["mean step"])
        bars = _stack(0.0, {part.name: part.mean_ns for part in run.parts}, "mean step")
        yield lanes.make_plot(
            name="mean-step",
            shared=run.name,
            title="Where the time of a step goes",
            caption="The mean of all steady steps, by part. other: what is in none of them.",
            note=lambda _, ns=run.mean_step_ns: format_time(ns),  # type: ignore[misc]
            data={"bars": bars},
            layers=stack_bars(bars, PART_STYLES, STEP_SHARE.channel(), lanes),
        )


def make_goodputs(rows: Sequence[Row]) -> Iterator[Plot]:
    """What the wall clock of each start went to."""
    for row in rows:
        run = row.monitored
        if run is None or run.goodput is None:
            continue
        starts = run.goodput.starts[-MOST_STARTS:]
        first = len(run.goodput.starts) - len(starts) + 1
        several = len(run.goodput.starts) > 1
        names = [f"start {number}" for number in range(first, first + len(starts))]
        times = [_list_times(start) for start in starts]
        if several:
            whole: dict[str, float] = {}
            for one in times:
                for part, time_ns in one.items():
                    whole[part] = whole.get(part, 0.0) + time_ns
            names, times = [*names, "all"], [*times, whole]
        else:
            names = ["wall clock"]
        lanes = _lay_bars(row, names)
        bars = [
            bar
            for (y, _), name, one in zip(lanes.rows, names, times, strict=True)
            for bar in _stack(y, _in_order(one), name)
        ]
        notes = iter([_write(sum(one.values())) for one in times])
        yield lanes.make_plot(
            name="goodput",
            shared=run.name,
            title=f"Goodput: {format_share(run.goodput.share)} of the wall clock advanced training",
            caption=_describe_goodput(run),
            note=lambda _, notes=notes: next(notes),  # type: ignore[misc]
            data={"bars": bars},
            layers=stack_bars(bars, CLOCK_STYLES, CLOCK_SHARE.channel(), lanes),
        )


def _describe_goodput(run: RunSummary) -> str:
    lost = "What steps took beyond their usual time is lost to first and to slow steps."
    if len(run.starts) == 1:
        return f"{lost} On the right, the wall clock."
    return (
        f"A bar is a start of the run. {lost} down: between a death and the next start; repeated: "
        "steps that a later start repeated. On the right, the wall clock."
    )


def _list_times(start: StartTimes) -> dict[str, float]:
    lost = {str(reason): time_s * 1e9 for reason, time_s in start.lost_s.items()}
    return {"training": start.training_s * 1e9, **lost}


def _in_order(times: Mapping[str, float]) -> dict[str, float]:
    return {part: times[part] for part in CLOCK_STYLES if times.get(part, 0.0) > 0}


def make_stragglers(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of runs of several ranks that have a monitor."""
    for row in rows:
        found = None if row.monitored is None else row.monitored.stragglers
        if found is None:
            continue
        worst = sorted(found.ranks, key=lambda one: -one.lost_ns)[:MOST_RANKS]
        shown = sorted(worst, key=lambda one: one.rank)
        x = Axis(title="share of the steps' time", label="format(datum.value, '.0%')",
                 begins_at_zero=True)  # fmt: skip
        lanes = _lay_bars(row, [f"rank {one.rank}" for one in shown])
        bars: Values = []
        for (y, _), one in zip(lanes.rows, shown, strict=True):
            for part, share, shift in (
                ("others wait for it", one.lost_share, 0.2),
                ("waits for others", one.waiting_share, -0.2),
            ):
                bars.append(
                    {"y": y + shift, "start": 0.0, "end": x.scale(share), "part": part, "text": "",
                     "tip": f"rank {one.rank}\n{part}: {format_share(share)}"}
                )  # fmt: skip
        left = len(found.ranks) - len(shown)
        more = f" {plural(left, 'rank')} with less are left out." if left else ""
        notes = iter([f"last in {format_share(one.last_share)}" for one in shown])
        styles = {"others wait for it": (2, 0), "waits for others": (1, 2)}
        yield lanes.make_plot(
            name="stragglers",
            shared=row.record.variant,
            title="Which rank makes the others wait",
            caption=f"{describe_stragglers(found)} On the right, in how many steps it came last."
            f"{more}",
            note=lambda _, notes=notes: next(notes),  # type: ignore[misc]
            data={"bars": bars},
            layers=stack_bars(bars, styles, x.channel(), lanes, size=8),
        )
