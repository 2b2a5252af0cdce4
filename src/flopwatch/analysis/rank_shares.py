"""What the ranks of a job did with their time: working, waiting, transferring data."""

from __future__ import annotations

from dataclasses import dataclass

from flopwatch.analysis.statistics import median
from flopwatch.records.record import Rank, Record

SLOW = 0.1
"""Ranks that wait for so large a share of a step wait for a slow one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Of one rank's steps, after warm-up: the median step on its own clock, divided as the time of
    all steps together is."""

    rank: int
    step_ns: float
    working_ns: float
    waiting_ns: float
    """In collectives, until the last rank had come."""
    transfer_ns: float
    """In collectives, from then on."""

    @property
    def waiting_share(self) -> float:
        return self.waiting_ns / self.step_ns


def split_ranks(record: Record) -> list[Split]:
    """By rank; nothing where the record is of no job, or has no measured samples."""
    first = record.warmup_samples
    if record.status != "ok" or len(record.rounds) <= first:
        return []
    return [_split(number, rank, first) for number, rank in enumerate(record.ranks)]


def find_slow_rank(splits: list[Split]) -> Split | None:
    """The rank that all others wait for, if they do for long."""
    if len(splits) < 2:
        return None
    slowest, *others = sorted(splits, key=lambda split: split.waiting_ns)
    is_awaited = all(other.waiting_share - slowest.waiting_share > SLOW for other in others)
    return slowest if is_awaited else None


def _split(number: int, rank: Rank, first: int) -> Split:
    steps_ns = [sum(phases) for phases in zip(*rank.samples_ns.values(), strict=True)][first:]
    step_ns, total_ns = median(steps_ns), sum(steps_ns)
    waiting_ns = step_ns * sum(rank.waiting_ns[first:]) / total_ns
    transfer_ns = step_ns * sum(rank.transfer_ns[first:]) / total_ns
    return Split(
        rank=number,
        step_ns=step_ns,
        working_ns=step_ns - waiting_ns - transfer_ns,
        waiting_ns=waiting_ns,
        transfer_ns=transfer_ns,
    )
