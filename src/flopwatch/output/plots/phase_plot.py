"""The parts of a run, one after the other: phases, and the regions inside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.summary import Row
from flopwatch.output.plots.axes import TIME, make_axis
from flopwatch.output.plots.lanes import Table, divide_lanes, lay_lanes, read_table
from flopwatch.output.plots.plot import Bar, Plot, Series, is_drawable
from flopwatch.output.plots.shapes import COLOURS
from flopwatch.output.units import format_time

NAME = "parts"
LANE_PX = 22.0
REST = "rest"


def make_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: those that have several phases, or regions."""
    divided = [row for row in rows if len(split(row)) > 1]
    if not divided:
        return
    table = read_table(rows)
    for some in divide_lanes(divided):
        yield _make_plot(some, table)


def split(row: Row) -> dict[tuple[str, str], float]:
    """Nanoseconds by phase and region, in order; what is left of a phase that has regions is its
    rest. Regions are timed in runs with instruments: their shares are taken, of the plain run."""
    if row.total_ns is None:
        return {}
    parts: dict[tuple[str, str], float] = {}
    for phase, estimate in row.phases_ns.items():
        inside = {
            name.removeprefix(f"{phase}/"): region.share.value * row.total_ns.value
            for name, region in row.regions.items()
            if name.startswith(f"{phase}/")
        }
        # Regions that come out longer than their phase are shortened to it.
        excess = max(1.0, sum(inside.values()) / estimate.value) if estimate.value else 1.0
        for region, time_ns in inside.items():
            parts[phase, region] = time_ns / excess
        rest_ns = max(0.0, estimate.value - sum(inside.values()) / excess)
        parts[phase, REST if inside else ""] = rest_ns
    return {part: time_ns for part, time_ns in parts.items() if is_drawable(time_ns)}


def _make_plot(rows: Sequence[Row], table: Table) -> Plot:
    lanes = lay_lanes(rows, table, lane_px=LANE_PX)
    styles = _choose_styles(rows)
    bars: dict[tuple[str, str], list[Bar]] = {part: [] for part in styles}
    longest = 0.0
    for y, row in lanes.rows:
        start = 0.0
        times_ns = split(row)
        total_ns = sum(times_ns.values())
        for part, time_ns in times_ns.items():
            share = 100 * time_ns / total_ns if total_ns else 0.0
            bars[part].append(
                Bar(
                    y=y,
                    start=start,
                    end=start + time_ns,
                    tip=f"{table.tell(row)}: {_name(part)} {format_time(time_ns)}, {share:.1f} %",
                    text=part[1] or part[0],
                )
            )
            start += time_ns
        longest = max(longest, start)
    return Plot(
        name=NAME,
        title="Where the time of a run goes",
        subject=table.subject,
        caption=(
            f"{table.middle.capitalize()}s of the phases, one after the other; where there were "
            "instruments, the regions of each phase by their share. On the right, the "
            f"{table.middle} of whole runs."
        ),
        conditions=table.conditions,
        x=make_axis("time of a run", [0.0, longest], TIME),
        y=lanes.y,
        series=tuple(
            Series(name=_name(part), number=number, shade=shade, bars=tuple(bars[part]))
            for part, (number, shade) in styles.items()
        ),
        names="top",
        lanes=lanes.count,
        lane_px=LANE_PX,
        headings=lanes.headings,
        notes=lanes.note(lambda row: format_time(row.total_ns.value if row.total_ns else 0.0)),
    )


def _choose_styles(rows: Sequence[Row]) -> dict[tuple[str, str], tuple[int, int]]:
    """By part: a colour for every phase, a shade for every region of it."""
    regions: dict[str, dict[str, None]] = {}
    for row in rows:
        for phase, region in split(row):
            regions.setdefault(phase, {})[region] = None
    styles: dict[tuple[str, str], tuple[int, int]] = {}
    for number, (phase, names) in enumerate(regions.items()):
        # A phase as a whole comes first, and what is left of one last.
        ordered = sorted(names, key=lambda name: (name != "", name == REST))
        for shade, region in enumerate(ordered):
            styles[phase, region] = (number % COLOURS + 1, shade + number // COLOURS)
    return styles


def _name(part: tuple[str, str]) -> str:
    phase, region = part
    return f"{phase}, {region}" if region else phase
