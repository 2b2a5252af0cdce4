"""Tables of training jobs: losses at equal time, what ranks did with their time, and what phases
held in memory next to what was predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from flopwatch.analysis.part_times import Split, find_slow_rank, split_ranks
from flopwatch.analysis.quality import Quality, assess, compare_losses
from flopwatch.analysis.record_job import read_training_job
from flopwatch.analysis.summary import Row
from flopwatch.devices.kinds import is_host
from flopwatch.errors import FlopwatchError
from flopwatch.jobs.rank_memory import estimate_all_ranks
from flopwatch.output.columns import NOT_COMPARABLE, label_columns
from flopwatch.output.tables import Column, Sheet, choose_axes, divide, interval_column, number
from flopwatch.output.units import (
    format_bytes,
    format_measured_time,
    format_signed,
    format_signed_share,
    format_speedup,
    format_time,
)
from flopwatch.records.record import RankMemory, Record
from flopwatch.suites.case import label


def make_quality_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every group in which something was trained."""
    return [_make_quality_sheet(group) for group in assess(rows)]


def _make_quality_sheet(group: Sequence[Quality]) -> Sheet:
    record = group[0].row.record
    baseline = record.baseline

    columns: list[Column[Quality]] = [
        *label_columns([], lambda quality: quality.row.record),
        number("parameters", "count", lambda q: q.row.record.facts.get("parameters"), "detail"),
        number("step time", "ns", lambda quality: quality.row.total_ns, "throughput", interval="±"),
        interval_column(lambda quality: quality.row.total_ns),
        Column("loss", lambda q: f"{q.final_loss:.3f}", value=lambda q: q.final_loss),
        Column(f"vs {baseline}", _format_difference, value=lambda q: q.loss_difference),
        number(
            f"time to {baseline}'s loss",
            "ns",
            lambda quality: quality.time_to_baseline_ns,
            cell=_format_time_to_baseline,
        ),
        number("gain at equal loss", "ratio", lambda q: q.gain, "word", cell=_format_gain),
    ]
    return Sheet(
        title=f"{record.suite} {label(record.params)}, loss",
        columns=columns,
        items=[group],
        conditions=f"gain: {baseline}'s time over the variant's, to the worse of both final "
        "losses; intervals are of step times and do not include the spread between seeds",
        remarks=_list_shortened(group),
    )


def _format_difference(quality: Quality) -> str:
    difference = quality.loss_difference
    return "" if difference is None else format_signed(difference, 3)


def _format_time_to_baseline(quality: Quality) -> str:
    if quality.time_to_baseline_ns is not None:
        return format_measured_time(quality.time_to_baseline_ns)
    return "not reached" if quality.reaches_baseline is False else ""


def _format_gain(quality: Quality) -> str:
    if quality.row.record.variant == quality.row.record.baseline:
        return "baseline"
    gain = "" if quality.gain is None else format_speedup(quality.gain)
    return ", ".join(filter(None, [gain, NOT_COMPARABLE if quality.row.differences else ""]))


def _list_shortened(group: Sequence[Quality]) -> list[str]:
    """Of variants that were trained for less than the others: their losses are not final ones."""
    most = max(quality.steps for quality in group)
    return [
        f"{quality.row.record.variant} {label(quality.row.record.params)}: trained for "
        f"{quality.steps:,.0f} steps, others for {most:,.0f}"
        for quality in group
        if quality.steps < most
    ]


@dataclass(frozen=True, slots=True)
class Place:
    row: Row
    split: Split


def make_rank_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every table of cases that ran on more than one rank."""
    jobs = [row for row in rows if len(split_ranks(row.record)) > 1]
    return [_make_rank_sheet(alike) for alike in divide(jobs)]


def _make_rank_sheet(rows: Sequence[Row]) -> Sheet:
    title, axes = choose_axes([row.record for row in rows])
    is_piped = any(rank.bubble_ns for row in rows for rank in row.record.ranks)
    columns: list[Column[Place]] = [
        *label_columns(axes, lambda place: place.row.record),
        Column("rank", lambda place: str(place.split.rank), "word"),
        *(
            [Column("stage", lambda p: name_stages(p.row.record, p.split.rank), "word")]
            if is_piped
            else []
        ),
        number("step", "ns", lambda place: place.split.step_ns),
        _part_column("working", lambda split: split.working_ns),
        _part_column("waiting", lambda split: split.waiting_ns),
        *(
            [number("bubble", "ns", lambda p: p.split.bubble_ns, cell=_bubble_cell)]
            if is_piped
            else []
        ),
        _part_column("transfer", lambda split: split.transfer_ns),
        _part_column("overlapped", lambda split: split.overlapped_ns),
    ]
    groups = [list(group) for _, group in groupby(rows, lambda row: row.record.group_id)]
    return Sheet(
        title=f"{title}, ranks",
        columns=columns,
        items=[[Place(row, split) for split in split_ranks(row.record)] for row in rows],
        conditions="waiting: at collectives, until the last rank arrived; transfer: from then on; "
        + ("bubble: for other stages; " if is_piped else "")
        + "working: everything else; overlapped: exchanges that ran meanwhile; of the median step",
        remarks=[
            *(remark for row in rows for remark in _remark_on(row)),
            *(remark for group in groups for remark in _remark_on_losses(group)),
        ],
    )


def name_stages(record: Record, rank: int) -> str:
    """Of a pipeline's rank."""
    job = read_training_job(record)
    is_piped = job is not None and job.parallelism.pipeline > 1
    stages = job.parallelism.find_stages(rank) if job is not None and is_piped else []
    return ", ".join(map(str, stages))


def _part_column(name: str, find_ns: Callable[[Split], float | None]) -> Column[Place]:
    return Column(
        name,
        lambda place: _with_share(find_ns(place.split), place.split),
        value=lambda place: find_ns(place.split),
    )


def _bubble_cell(place: Place) -> str:
    has_pipeline = place.row.record.ranks[place.split.rank].bubble_ns
    return _with_share(place.split.bubble_ns, place.split) if has_pipeline else ""


def _with_share(time_ns: float | None, split: Split) -> str:
    if time_ns is None:
        return "unknown"
    if time_ns <= 0:
        return "0"
    return f"{format_time(time_ns)} ({100 * time_ns / split.step_ns:.0f} %)"


def _remark_on(row: Row) -> list[str]:
    splits = split_ranks(row.record)
    slow = find_slow_rank(splits)
    if slow is None:
        return []
    longest_ns = max(split.waiting_ns or 0.0 for split in splits)
    return [
        f"{row.record.variant}: other ranks wait for rank {slow.rank}, up to "
        f"{format_time(longest_ns)} of a step"
    ]


def _remark_on_losses(rows: Sequence[Row]) -> list[str]:
    found = compare_losses(rows)
    if found is None:
        return []
    furthest = f"{found.variant} is furthest off, by {100 * found.deviation:.2g} %"
    return [
        f"all variants trained on the same sequences, {found.steps} steps, loss {found.first:.3f} "
        f"to {found.last:.3f}; {furthest if found.deviation else 'all losses are equal'}"
    ]


OF_ALL = (
    "where an error is missing, before and peak include what other variants hold, and predicted "
    "does not"
)


def make_memory_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One for every table of cases whose memory was predicted, and one of their ranks, where these
    hold different parts of a model."""
    groups = {row.record.group_id for row in rows if row.record.predicted_memory_bytes}
    tables = divide([r for r in rows if r.record.group_id in groups])
    uneven = [
        [row for row in alike if len(row.record.rank_memory) > 1 and is_divided(row.record)]
        for alike in tables
    ]
    return [
        *map(_make_memory_sheet, tables),
        *(_make_rank_memory_sheet(alike) for alike in uneven if alike),
    ]


def is_divided(record: Record) -> bool:
    job = read_training_job(record)
    return job is not None and job.parallelism.model_ranks > 1


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank of a job held, and what it was expected to."""

    row: Row
    rank: int
    predicted_bytes: int | None
    is_alone: bool
    """Whether no other variant held anything meanwhile."""

    @property
    def memory(self) -> RankMemory | None:
        return self.row.record.rank_memory[self.rank]

    @property
    def peak_bytes(self) -> int | None:
        memory = self.memory
        return None if memory is None else memory.resident_bytes + memory.peak_memory_bytes

    @property
    def error(self) -> float | None:
        if self.peak_bytes is None or self.predicted_bytes is None or not self.is_alone:
            return None
        return self.predicted_bytes / self.peak_bytes - 1


def list_holdings(row: Row, *, is_alone: bool) -> list[Holding]:
    """By rank."""
    record, job = row.record, read_training_job(row.record)
    predicted: list[int | None] = [None] * len(record.rank_memory)
    if job is not None and job.is_dense:
        # Of kinds of parallelism, or a model, whose memory is not known.
        with suppress(FlopwatchError):
            estimates = estimate_all_ranks(job, on_host=is_host(record.settings.device))
            predicted = [sum(parts.values()) for parts in estimates]
    return [
        Holding(row, rank, each, is_alone)
        for rank, each in enumerate(predicted[: len(record.rank_memory)])
    ]


def _make_rank_memory_sheet(rows: Sequence[Row]) -> Sheet:
    title, axes = choose_axes([row.record for row in rows])
    sizes = Counter(row.record.group_id for row in rows)
    columns: list[Column[Holding]] = [
        *label_columns(axes, lambda each: each.row.record),
        Column("rank", lambda each: str(each.rank), "word"),
        Column("stage", lambda each: name_stages(each.row.record, each.rank), "word"),
        number("before", "bytes", lambda e: e.memory.resident_bytes if e.memory else None),
        number("step", "bytes", lambda e: e.memory.peak_memory_bytes if e.memory else None),
        number("peak", "bytes", lambda each: each.peak_bytes),
        number("predicted", "bytes", lambda each: each.predicted_bytes),
        Column("error", lambda e: format_signed_share(e.error), value=lambda e: e.error),
    ]
    has_others = any(size > 1 for size in sizes.values())
    return Sheet(
        title=f"{title}, memory of ranks",
        columns=columns,
        items=[list_holdings(row, is_alone=sizes[row.record.group_id] == 1) for row in rows],
        conditions="before: tensors that were there before a step; step: the most that it held "
        "beyond those; peak: both together; predicted: from dimensions and the schedule",
        remarks=[OF_ALL] if has_others else [],
    )


def _make_memory_sheet(rows: Sequence[Row]) -> Sheet:
    # One that is not predicted has tensors of its own, which are there before the others' steps;
    # and in a job, every variant has.
    mixed = {row.record.group_id for row in rows if not row.record.predicted_memory_bytes}
    jobs = Counter(row.record.group_id for row in rows if row.record.ranks)
    mixed |= {group for group, variants in jobs.items() if variants > 1}

    def error_of(row: Row) -> float | None:
        return None if row.record.group_id in mixed else find_error(row.record)

    title, axes = choose_axes([row.record for row in rows])
    phases = dict.fromkeys(phase for row in rows for phase in row.record.memory)
    columns: list[Column[Row]] = [
        *label_columns(axes, lambda row: row.record),
        number("before", "bytes", lambda row: row.record.resident_bytes, "detail"),
        *map(_phase_column, phases),
        number("kept for backward", "bytes", _find_kept_bytes, "memory"),
        number("peak", "bytes", lambda row: find_peak_bytes(row.record), cell=_peak_cell),
        number("predicted", "bytes", lambda row: find_estimate_bytes(row.record)),
        Column("error", lambda row: format_signed_share(error_of(row)), value=error_of),
    ]
    return Sheet(
        title=f"{title}, memory",
        columns=columns,
        items=[list(group) for _, group in groupby(rows, lambda row: row.record.group_id)],
        conditions="before: tensors that were there before a step; by phase: the most that it held "
        "beyond those; peak: both together; predicted: from dimensions alone",
        remarks=[OF_ALL] if mixed else [],
    )


def find_peak_bytes(record: Record) -> int | None:
    """Of all tensors of the process; None where it was not measured."""
    if record.resident_bytes is None or not record.memory:
        return None
    return record.resident_bytes + max(held.peak_bytes for held in record.memory.values())


def find_estimate_bytes(record: Record) -> float | None:
    return sum(record.predicted_memory_bytes.values()) or None


def find_error(record: Record) -> float | None:
    """Of the estimate, relative to what was measured; None where either is not known."""
    peak_bytes, estimate_bytes = find_peak_bytes(record), find_estimate_bytes(record)
    return estimate_bytes / peak_bytes - 1 if peak_bytes and estimate_bytes else None


def _phase_column(phase: str) -> Column[Row]:
    def find_bytes(row: Row) -> float | None:
        held = row.record.memory.get(phase)
        return None if held is None else held.peak_bytes

    return number(phase, "bytes", find_bytes, "phase")


def _find_kept_bytes(row: Row) -> float | None:
    forward = row.record.memory.get("forward")
    return None if forward is None or "backward" not in row.record.memory else forward.end_bytes


def _peak_cell(row: Row) -> str:
    peak_bytes = find_peak_bytes(row.record)
    return row.record.status if peak_bytes is None else format_bytes(peak_bytes)
