"""One step of a job as it went: a lane for each rank, with its passes, transfers and waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flopwatch.analysis.part_times import split_ranks
from flopwatch.analysis.record_job import read_training_job
from flopwatch.analysis.summary import Row
from flopwatch.output.plots.bar_plots import LANE_PX, stack_bars
from flopwatch.output.plots.channels import TIME, Axis, make_axis
from flopwatch.output.plots.lanes import MOST_LANES, Lanes, Table, read_table
from flopwatch.output.plots.plot import Plot, Values, shorten
from flopwatch.output.units import format_time, printable
from flopwatch.records.record import RankTimeline

STYLES: Mapping[str, tuple[int, int]] = {
    "grad_accum": (1, 2),
    "forward": (1, 0),
    "forward-backward": (1, 3),
    "backward": (3, 0),
    "weight": (3, 2),
    "optimizer": (4, 1),
    "transfer": (5, 0),
    "waiting": (2, 1),
    "bubble": (0, 2),
}
"""Colour and shade by kind; waiting and the bubble are what is lost."""
NAMES: Mapping[str, str] = {"weight": "gradient of weights", "bubble": "pipeline bubble"}
OTHER = (5, 3)
MOST_PLOTS = 12
"""Of a table: a plot for each of its first jobs."""


def make_steps_of_ranks(rows: Sequence[Row]) -> Iterator[Plot]:
    """Of rows that share a table: a plot for each job, pipelines first."""
    jobs = [row for row in rows if len(row.record.timeline) > 1]
    table = read_table(rows) if jobs else None
    jobs.sort(key=lambda row: not any(rank.bubble_ns for rank in row.record.ranks))
    for row in jobs[:MOST_PLOTS]:
        assert table is not None
        yield _draw(row, table)


def _draw(row: Row, table: Table) -> Plot:
    record = row.record
    lanes = record.timeline[:MOST_LANES]
    left = len(record.timeline) - len(lanes)
    ends = [end_ns for lane in lanes for end_ns in lane.end_ns] or [1.0]
    axis = make_axis("time from the beginning of the step", ends, TIME, from_zero=True)
    bars: Values = [
        bar for rank, lane in enumerate(lanes) for bar in _list_bars(rank, lane, axis, row, table)
    ]
    kinds = dict.fromkeys(kind for lane in lanes for kind in lane.kind)
    styles = {_name(k): STYLES.get(k, OTHER) for k in (*STYLES, *kinds) if k in kinds}
    drawn = Lanes(
        table=table,
        rows=[],
        names=[
            {"y": -rank, "text": shorten(_name_lane(row, rank)), "note": _note(row, rank)}
            for rank in range(len(lanes))
        ],
        headings=[],
        count=len(lanes),
        lane_px=LANE_PX,
    )
    is_piped = any("bubble" in lane.kind for lane in lanes)
    numbered = " Numbers are micro-batches." if is_piped else ""
    return drawn.make_plot(
        name="ranks",
        title="What each rank did in a step",
        shared=printable(f"{table.name_case(row)} {record.variant}".strip()),
        caption="One measured step that took about as long as most; on the right, the share of "
        f"steps in which ranks compute.{numbered}"
        + (f" {left} more are left out." if left else ""),
        note=None,
        data={"bars": bars},
        layers=stack_bars(bars, styles, axis.channel(), drawn),
        is_informative=is_piped,
    )


def _list_bars(
    rank: int, lane: RankTimeline, axis: Axis, row: Row, table: Table
) -> Iterator[dict[str, object]]:
    spans = zip(
        lane.kind, lane.begin_ns, lane.end_ns, lane.stage, lane.micro_batch, lane.exchange,
        strict=True,
    )  # fmt: skip
    for kind, begin_ns, end_ns, stage, micro_batch, exchange in spans:
        where = "" if stage is None else f", stage {stage}, micro-batch {micro_batch}"
        told = f"{_name(kind)}{where}: {format_time(end_ns - begin_ns)}"
        yield {
            "y": -rank,
            "start": axis.scale(begin_ns),
            "end": axis.scale(end_ns),
            "part": _name(kind),
            "text": "" if micro_batch is None else str(micro_batch),
            "tip": table.tip(row, f"rank {rank}: {told}", *([exchange] if exchange else [])),
        }


def _name(kind: str) -> str:
    return printable(NAMES.get(kind, kind))


def _name_lane(row: Row, rank: int) -> str:
    job = read_training_job(row.record)
    if job is None or job.parallelism.pipeline == 1:
        return f"rank {rank}"
    stages = job.parallelism.find_stages(rank)
    return f"rank {rank}, stage {' and '.join(map(str, stages))}"


def _note(row: Row, rank: int) -> str:
    splits = split_ranks(row.record)
    working_ns = splits[rank].working_ns if rank < len(splits) else None
    return "" if working_ns is None else f"{100 * working_ns / splits[rank].step_ns:.0f} %"
