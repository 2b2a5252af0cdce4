"""One row a case: what its samples come to.

Everything is computed from records on reading. Speedups pair a variant with the baseline of its
own run and group, sample by sample within rounds; there is none across runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from flopwatch.analysis.comparable import Differences, conditions, find_condition_differences
from flopwatch.analysis.part_times import (
    Inside,
    estimate_instruments,
    estimate_limit,
    look_inside,
    split_ranks,
)
from flopwatch.analysis.record_device import (
    PeakShare,
    Standard,
    find_peak_shares,
    find_utilisation,
    sum_flops,
)
from flopwatch.analysis.statistics import (
    Estimate,
    Verdict,
    as_interval,
    estimate_median,
    estimate_total_ns,
    is_measured,
    is_timed,
    judge,
    pair_ratio,
    totals_by_round,
    with_intervals,
)
from flopwatch.records.record import Record

if TYPE_CHECKING:  # few results have training jobs, or monitored runs
    from flopwatch.analysis.monitored_run import RunSummary
    from flopwatch.jobs.utilisation import Utilisation


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    record: Record
    against: Record | None = None
    """The baseline of its own run and group; None for a baseline, where that failed, and for what
    is in parts."""
    in_parts: bool = False
    """Whether it is not a rival of the baseline but a breakdown: see `record.Kind`."""
    phases_ns: dict[str, Estimate] = field(default_factory=dict)
    """Median of each phase, warm-up left out."""
    total_ns: Estimate | None = None
    """Median of the sum of the phases. None, like all that follows, where nothing was measured."""
    speedup: Estimate | None = None
    """Over the baseline; more than 1 is faster. None for the baseline and where it failed."""
    verdict: Verdict | None = None
    limit: float | None = None
    """The speedup that arithmetic alone would give; None where its cost does not differ."""
    differences: Differences = field(default_factory=dict)
    """Where the case's own conditions differ from the baseline's: by field, the baseline's value
    and this one's. With any of them the two are not comparable."""
    flops_per_s: float | None = None
    of_peak: dict[Standard, PeakShare] = field(default_factory=dict)
    """What part of the peak that is, of those that are known."""
    bytes_per_s: float | None = None
    tokens_per_s: float | None = None
    """Where the case says how many tokens a run has, by a fact."""
    utilisation: Utilisation | None = None
    """Of a training job."""
    regions: dict[str, Inside] = field(default_factory=dict)
    """What instruments saw, by ``phase/region``."""
    monitored: RunSummary | None = None
    """Of a monitored training loop: all its starts, of which `record` is the newest."""
    conditions_digest: str = ""
    """Equal for rows that are comparable: the `conditions` of its record."""

    def __post_init__(self) -> None:
        if not self.conditions_digest:
            object.__setattr__(self, "conditions_digest", conditions(self.record))


def summarize(records: Iterable[Record]) -> list[Row]:
    """One row for every case, baseline and set of conditions (threads, cache, ...): its newest
    record, groups together, the baseline of each first. What was skipped or interrupted counts
    only where there is nothing better."""
    every = list(records)
    listed = [record for record in every if record.monitored is None]
    timed = {(r.run_id, r.group_id, r.variant): r for r in listed if is_timed(r)}
    first_seen: dict[tuple[str, str, str], int] = {}
    for position, record in enumerate(listed):
        first_seen.setdefault((conditions(record), record.group_id, record.baseline), position)
    newest = [(record, digest_) for (_, _, digest_), record in choose_newest(listed).items()]
    newest.sort(
        key=lambda pair: (
            first_seen[pair[1], pair[0].group_id, pair[0].baseline],
            pair[0].variant != pair[0].baseline,
        )
    )
    rows = [
        make_row(record, timed.get((record.run_id, record.group_id, record.baseline)), digest_)
        for record, digest_ in newest
    ]
    return [*rows, *_summarize_runs([r for r in every if r.monitored is not None])]


def _summarize_runs(records: Sequence[Record]) -> list[Row]:
    """A row for every monitored run with all its starts; of several of one name, the newest."""
    if not records:
        return []
    from flopwatch.analysis.monitored_run import as_utilisation, split_runs, summarize_run

    newest = {starts[-1].case_id: starts for starts in split_runs(records)}
    rows = []
    for starts in newest.values():
        run = summarize_run(starts)
        if run is None:
            rows.append(Row(record=starts[-1]))
            continue
        record = run.starts[-1].record
        rows.append(
            Row(
                record=record,
                phases_ns=dict.fromkeys(record.samples_ns, run.step_ns),
                total_ns=run.step_ns,
                flops_per_s=_rate(sum(sum_flops(record.flops).values()), run.step_ns),
                of_peak=find_peak_shares(record, run.step_ns.value),
                tokens_per_s=None if run.tokens is None else run.tokens.per_s,
                utilisation=as_utilisation(run),
                monitored=run,
            )
        )
    return rows


def choose_newest(records: Iterable[Record]) -> dict[tuple[str, str, str], Record]:
    """By case, baseline and conditions. What was skipped or interrupted counts only where there is
    nothing better."""
    by_age = sorted(
        records,
        key=lambda r: (
            r.status != "skipped" and r.stop_reason != "interrupted",
            r.measured_at,
        ),
    )
    newest = {(record.case_id, record.baseline, conditions(record)): record for record in by_age}
    return _drop_unplaced(newest)


def _drop_unplaced(
    newest: dict[tuple[str, str, str], Record],
) -> dict[tuple[str, str, str], Record]:
    """Without rows of jobs that never came to their node, and so have no conditions of their own,
    where the case was measured by another job."""
    unplaced = {
        key
        for key, record in newest.items()
        if "slurm" in record.environment and "machine" not in record.environment
    }
    if not unplaced:
        return newest
    placed = {key[:2] for key in newest.keys() - unplaced}
    return {key: r for key, r in newest.items() if key not in unplaced or key[:2] not in placed}


def is_foreign(record: Record) -> bool:
    """Whether others have measured it: its settings are not known."""
    return bool(record.environment.keys() & {"imported", "published"})


def make_row(record: Record, baseline: Record | None, conditions_digest: str = "") -> Row:
    if not is_measured(record):
        return Row(record=record, conditions_digest=conditions_digest)
    total_ns = estimate_total_ns(record)
    is_baseline = record.variant == record.baseline
    in_parts = record.kind == "parts" and not is_baseline
    against = None if is_baseline or in_parts else baseline
    speedup = None if against is None else estimate_speedup(record, against)
    tokens_per_s = _rate(record.facts.get("tokens", 0.0), total_ns)
    return Row(
        record=record,
        against=against,
        in_parts=in_parts,
        phases_ns={
            phase: estimate_median(samples[record.warmup_samples :])
            for phase, samples in record.samples_ns.items()
        },
        total_ns=total_ns,
        speedup=speedup,
        verdict=None if speedup is None else judge(speedup),
        limit=None if against is None else estimate_limit(record, against),
        differences={} if against is None else find_condition_differences(against, record),
        flops_per_s=_rate(sum(sum_flops(record.flops).values()), total_ns),
        of_peak=find_peak_shares(record, total_ns.value),
        bytes_per_s=_rate(sum(record.bytes.values()), total_ns),
        tokens_per_s=tokens_per_s,
        utilisation=find_utilisation(record, tokens_per_s),
        regions=look_inside(record, against),
        conditions_digest=conditions_digest,
    )


def estimate_speedup(record: Record, baseline: Record) -> Estimate | None:
    """How many times faster than the baseline, from the rounds that both took part in."""
    ratio = pair_ratio(totals_by_round(record), totals_by_round(baseline))
    return None if ratio is None else ratio.inverse()


def _rate(amount: float, total_ns: Estimate) -> float | None:
    return amount / total_ns.value * 1e9 if amount and total_ns.value else None


def as_dict(row: Row) -> dict[str, Any]:
    """For JSON: what the columns of a table cannot hold, with units in the names."""
    record = row.record
    return {
        "params": record.params,
        "total_ns": as_interval(row.total_ns),
        "phases_ns": {phase: as_interval(estimate) for phase, estimate in row.phases_ns.items()},
        "speedup": as_interval(row.speedup),
        "differences": differences_as_dict(row),
        "of_peak": {standard: asdict(share) for standard, share in row.of_peak.items()},
        "utilisation": None if row.utilisation is None else asdict(row.utilisation),
        "memory": {
            "resident_bytes": record.resident_bytes,
            "phases": msgspec.to_builtins(record.memory),
            "estimate_bytes": record.predicted_memory_bytes,
        },
        "conditions": record.conditions,
        "facts": record.facts,
        "columns": msgspec.to_builtins(record.columns),
        "ranks": [asdict(split) for split in split_ranks(record)],
        "regions": {name: with_intervals(inside) for name, inside in row.regions.items()},
        "instruments": as_interval(estimate_instruments([record])),
        "monitored": None if row.monitored is None else row.monitored.to_dict(),
        "warmup_samples": record.warmup_samples,
        "notes": record.notes,
    }


def differences_as_dict(row: Row) -> dict[str, dict[str, str | None]]:
    return {
        name: {"baseline": theirs, "own": own} for name, (theirs, own) in row.differences.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A layer and its parts."""

    row: Row
    """Of the layer. Its speedup is that of one whole over another."""
    parts: Row
    ratio: Estimate
    """The layer's time over the sum of its parts; less than 1 where the whole takes less."""
    parts_speedup: Estimate | None
    """Of the sum over the sum of the baseline's parts, as published speedups are. None for the
    baseline, and where its parts were not measured in the same run."""


def compare_wholes(rows: Sequence[Row]) -> list[list[Whole]]:
    """Group by group: layers against the sum of their parts, both measured in the same run.

    A speed may be published as a sum of parts that were timed one by one. Such a sum lacks what
    happens between the parts (calls, bookkeeping, memory), and it may count twice what a whole
    layer does once. Whole and sum are compared within rounds, like everything else.
    """
    groups = groupby(rows, lambda row: (row.record.group_id, row.conditions_digest))
    found = [_compare_group([row for row in group if row.total_ns]) for _, group in groups]
    return [group for group in found if group]


def _compare_group(rows: Sequence[Row]) -> list[Whole]:
    parts_by_whole = {(row.record.run_id, row.record.parts_of): row for row in rows}
    compared = []
    for row in rows:
        record = row.record
        parts = parts_by_whole.get((record.run_id, record.variant))
        if parts is None:
            continue
        ratio = pair_ratio(totals_by_round(record), totals_by_round(parts.record))
        if ratio is None:
            continue
        rival = parts_by_whole.get((record.run_id, record.baseline))
        speedup = (
            None
            if rival is None or rival is parts
            else estimate_speedup(parts.record, rival.record)
        )
        compared.append(Whole(row=row, parts=parts, ratio=ratio, parts_speedup=speedup))
    return compared


def parts_as_dict(whole: Whole) -> dict[str, Any]:
    """For ``--json``: plain numbers with units in their names."""
    return {
        "variant": whole.parts.record.variant,
        "total_ns": as_interval(whole.parts.total_ns),
        "whole_over_sum": as_interval(whole.ratio),
        "speedup_of_sums": as_interval(whole.parts_speedup),
    }
