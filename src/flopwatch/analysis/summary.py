"""One row a case: what its samples come to.

Everything is computed from records on reading. Speedups pair a variant with the baseline of its
own run and group, sample by sample within rounds; there is none across runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from flopwatch.analysis import rank_shares
from flopwatch.analysis.comparable import Differences, find_condition_differences
from flopwatch.analysis.flop_limit import estimate_limit
from flopwatch.analysis.peak_share import (
    PeakShare,
    Standard,
    count_flops,
    find_peak_shares,
    find_utilisation,
)
from flopwatch.analysis.region_times import Inside, estimate_instruments, look_inside
from flopwatch.analysis.samples import estimate_total_ns, pair_ratio, totals_by_round
from flopwatch.analysis.statistics import (
    Estimate,
    Verdict,
    as_interval,
    estimate_median,
    judge,
)
from flopwatch.devices import environment
from flopwatch.records.record import Record
from flopwatch.suites.case import digest

if TYPE_CHECKING:
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
    conditions_digest: str = ""
    """Equal for rows that are comparable: the `conditions` of its record."""

    def __post_init__(self) -> None:
        if not self.conditions_digest:
            object.__setattr__(self, "conditions_digest", conditions(self.record))


def summarize(records: Iterable[Record]) -> list[Row]:
    """One row for every case, baseline and set of conditions (threads, cache, ...): its newest
    record, groups together, the baseline of each first. What was skipped or interrupted counts
    only where there is nothing better."""
    listed = list(records)
    timed = {(r.run_id, r.group_id, r.variant): r for r in listed if is_timed(r)}
    alike = {id(record): conditions(record) for record in listed}
    by_age = sorted(listed, key=lambda record: (_is_complete(record), record.measured_at))
    newest = {(record.case_id, record.baseline, alike[id(record)]): record for record in by_age}
    first_seen: dict[tuple[str, str, str], int] = {}
    for position, record in enumerate(listed):
        first_seen.setdefault((alike[id(record)], record.group_id, record.baseline), position)
    ordered = sorted(
        newest.values(),
        key=lambda record: (
            first_seen[alike[id(record)], record.group_id, record.baseline],
            record.variant != record.baseline,
        ),
    )
    return [
        make_row(
            record, timed.get((record.run_id, record.group_id, record.baseline)), alike[id(record)]
        )
        for record in ordered
    ]


def conditions(record: Record) -> str:
    """Equal for records that are comparable."""
    # Tables ask for it many times a record, and few records differ in it.
    return _digest(
        msgspec.json.encode(environment.measurement_conditions(record.environment, record.settings))
    )


@lru_cache(maxsize=1024)
def _digest(content: bytes) -> str:
    return digest(msgspec.json.decode(content))


def _is_complete(record: Record) -> bool:
    return record.status != "skipped" and record.stop_reason != "interrupted"


def _is_measured(record: Record) -> bool:
    return record.status == "ok" and len(record.rounds) > record.warmup_samples


def is_foreign(record: Record) -> bool:
    """Whether others have measured it: its settings are not known."""
    return bool(record.environment.keys() & {"imported", "published"})


def is_timed(record: Record) -> bool:
    """Whether it serves as a baseline: also if something after its timing failed, a study say."""
    return len(record.rounds) > record.warmup_samples and (
        record.status == "ok" or record.stop_reason is not None
    )


def make_row(record: Record, baseline: Record | None, conditions_digest: str = "") -> Row:
    if not _is_measured(record):
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
        flops_per_s=_rate(sum(count_flops(record).values()), total_ns),
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
        "memory": memory_as_dict(record),
        "conditions": record.conditions,
        "facts": record.facts,
        "ranks": [rank_shares.as_dict(split) for split in rank_shares.split_ranks(record)],
        "regions": {name: _inside_as_dict(inside) for name, inside in row.regions.items()},
        "instruments": as_interval(estimate_instruments([record])),
        "warmup_samples": record.warmup_samples,
        "notes": record.notes,
    }


def memory_as_dict(record: Record) -> dict[str, Any]:
    return {
        "resident_bytes": record.resident_bytes,
        "phases": {
            phase: {"peak_bytes": held.peak_bytes, "end_bytes": held.end_bytes}
            for phase, held in record.memory.items()
        },
        "estimate_bytes": record.predicted_memory_bytes,
    }


def differences_as_dict(row: Row) -> dict[str, dict[str, str | None]]:
    return {
        name: {"baseline": theirs, "own": own} for name, (theirs, own) in row.differences.items()
    }


def _inside_as_dict(inside: Inside) -> dict[str, Any]:
    return {
        "calls": inside.calls,
        "call_ns": as_interval(inside.call_ns),
        "share": as_interval(inside.share),
        "speedup": as_interval(inside.speedup),
        "verdict": inside.verdict,
        "limit": inside.limit,
        "flops_per_s": inside.flops_per_s,
    }
