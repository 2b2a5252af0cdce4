"""Where the time of traces went: a bar for every step, rank or side of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flopwatch.output.plots.bar_plots import LANE_PX, stack_bars
from flopwatch.output.plots.channels import TIME, make_axis
from flopwatch.output.plots.lanes import MOST_LANES, Lanes, Table
from flopwatch.output.plots.plot import Plot, Values, shorten
from flopwatch.output.trace_tables import name_row
from flopwatch.output.units import format_time, printable
from flopwatch.traces.explained_trace import ExplainedTrace
from flopwatch.traces.operation_kinds import KINDS, Kind
from flopwatch.traces.trace_comparison import TraceComparison

STYLES: dict[Kind, tuple[int, int]] = {
    "matmul": (1, 0),
    "attention": (2, 0),
    "softmax": (2, 1),
    "norm": (3, 1),
    "loss": (3, 2),
    "embedding": (1, 2),
    "element-wise": (3, 0),
    "reduction": (3, 3),
    "memory movement": (1, 1),
    "bookkeeping": (0, 2),
    "other": (1, 3),
    "optimizer": (4, 0),
    "communication": (5, 0),
    "memory copies": (5, 1),
    "waiting for data": (4, 2),
    "launch gaps": (0, 1),
    "idle": (0, 3),
    "between operations": (0, 3),
}
"""Colour and shade of each row, as in the breakdown of measured results."""


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    total_ns: float
    rows: Mapping[Kind, float]
    overlapped_ns: float


def make_trace_plot(traces: Sequence[ExplainedTrace]) -> Plot:
    """Of one trace its steps, of several an average step of each."""
    if len(traces) == 1:
        trace = traces[0]
        steps = trace.steps or [trace.whole]
        bars = [Bar(one.name, one.total_ns, one.rows, one.overlapped_ns) for one in steps]
        return _draw(bars, trace.label, "A bar for each step" if trace.steps else "The whole trace")
    bars = [_average(trace, f"rank {trace.rank}") for trace in traces]
    return _draw(bars, f"{len(traces)} ranks", "An average step of each rank")


def make_comparison_plot(found: TraceComparison) -> Plot:
    bars = [_average(found.old, found.old.label), _average(found.new, found.new.label)]
    if bars[0].name == bars[1].name:
        bars = [_average(found.old, "old"), _average(found.new, "new")]
    return _draw(bars, f"{found.old.label} and {found.new.label}", "An average step of both")


def _average(trace: ExplainedTrace, name: str) -> Bar:
    overlapped_ns = trace.total.overlapped_ns / trace.count
    return Bar(name, trace.step_ns, trace.mean_rows_ns, overlapped_ns)


def _draw(bars: Sequence[Bar], subject: str, what: str) -> Plot:
    shown = bars[:MOST_LANES]
    left = len(bars) - len(shown)
    axis = make_axis("time", [bar.total_ns for bar in shown], TIME, from_zero=True)
    values: Values = []
    for place, bar in enumerate(shown):
        for kind, start_ns, end_ns in _stack(bar):
            share = f"{100 * (end_ns - start_ns) / bar.total_ns:.1f} %"
            told = f"{name_row(kind)}: {format_time(end_ns - start_ns)}, {share}"
            values.append(
                {
                    "y": -place,
                    "start": axis.scale(start_ns),
                    "end": axis.scale(end_ns),
                    "part": name_row(kind),
                    "text": kind,
                    "tip": "\n".join([printable(bar.name), told]),
                }
            )
    lanes = Lanes(
        table=Table(subject=printable(subject), axes=[], numbers={}, conditions=""),
        rows=[],
        names=[
            {"y": -place, "text": shorten(bar.name), "note": _note(bar)}
            for place, bar in enumerate(shown)
        ],
        headings=[],
        count=len(shown),
        lane_px=LANE_PX,
    )
    styles = {name_row(kind): STYLES[kind] for kind in KINDS if any(kind in b.rows for b in shown)}
    overlapped = any(bar.overlapped_ns for bar in shown)
    return lanes.make_plot(
        name="trace",
        title="Where the time of a step goes",
        caption=f"{what}; the parts add up to it."
        + (" In brackets: communication that computing overlaps." if overlapped else "")
        + (f" {left} more are left out." if left else ""),
        note=None,
        data={"bars": values},
        layers=stack_bars(values, styles, axis.channel(), lanes),
    )


def _note(bar: Bar) -> str:
    overlapped = f" (+{format_time(bar.overlapped_ns)})" if bar.overlapped_ns else ""
    return f"{format_time(bar.total_ns)}{overlapped}"


def _stack(bar: Bar) -> Iterator[tuple[Kind, float, float]]:
    start_ns = 0.0
    for kind in KINDS:
        time_ns = bar.rows.get(kind, 0)
        if time_ns:
            yield kind, start_ns, start_ns + time_ns
            start_ns += time_ns
