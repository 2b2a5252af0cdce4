"""One record of a monitored run, from the line that it begins with and those that continue it.

All ranks of a run write into one file, or where nodes share no disk, into one of each node: what
has the same run and case belongs together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from flopwatch.errors import CorruptFile
from flopwatch.records.monitored import (
    PARALLEL,
    Continuation,
    CountedFlops,
    End,
    Monitored,
    RankSteps,
)
from flopwatch.records.record import Record

STEP = "step"
"""The phase that a monitored run has samples of."""
NO_STEP = "no step has ended"


@dataclass
class _Run:
    first: Record
    """Its first line: of the lowest rank, where several have written one."""
    ranks: dict[int, RankSteps] = field(default_factory=dict)
    flops: CountedFlops | None = None
    flops_missing: str | None = None
    job: dict[str, Any] | None = None
    notes: dict[str, None] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)


class RunJoiner:
    """Takes the lines of a file, in order."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], _Run] = {}

    def begin(self, record: Record) -> bool:
        """Whether the record is the first line of a run, which is then kept until `finish`."""
        if not is_first_line(record):
            return False
        run = self._runs.setdefault((record.run_id, record.case_id), _Run(record))
        if _rank(record) < _rank(run.first):
            run.first = record
        run.notes |= dict.fromkeys(record.notes)
        return True

    def add(self, line: Continuation) -> None:
        """Raises CorruptFile for a line that continues nothing."""
        run = self._runs.get((line.run_id, line.case_id))
        if run is None:
            raise CorruptFile("it continues a run whose first line is not there")
        more = line.continued
        known = run.ranks.setdefault(more.rank, RankSteps(rank=more.rank, zero_unix_s=0.0))
        if known.steps and more.steps and more.steps[0] <= known.steps[-1]:
            raise CorruptFile(f"it repeats steps of rank {more.rank}")
        run.ranks[more.rank] = extend(known, more)
        run.flops = run.flops or line.flops
        run.flops_missing = line.flops_missing or run.flops_missing
        run.job = run.job or line.job
        run.notes |= dict.fromkeys(line.notes)
        if line.end is not None:
            run.ends[more.rank] = line.end

    def finish(self) -> Iterator[Record]:
        """A record a run, in order of their first lines."""
        for run in self._runs.values():
            monitored = run.first.monitored
            assert monitored is not None
            yield complete(
                replace(run.first, notes=list(run.notes), job=run.first.job or run.job),
                replace(
                    monitored,
                    flops=monitored.flops or run.flops,
                    flops_missing=None if monitored.flops or run.flops else run.flops_missing,
                    end=run.ends.get(min(run.ranks, default=0)),
                    ranks=[run.ranks[rank] for rank in sorted(run.ranks)],
                ),
            )


def is_first_line(record: Record) -> bool:
    return record.monitored is not None and not record.monitored.ranks


def extend(known: RankSteps, more: RankSteps) -> RankSteps:
    """Changes the lists of `known`, whose owner must be the caller: of a long run there are many
    lines."""
    length = len(known.steps)
    for part in {*known.parts_ns, *more.parts_ns}:
        times_ns = known.parts_ns.setdefault(part, [None] * length)
        times_ns += more.parts_ns.get(part, [None] * len(more.steps))
    for name in (*PARALLEL, "events", "readings"):
        getattr(known, name).extend(getattr(more, name))
    return replace(known, zero_unix_s=more.zero_unix_s, seen_ns=max(known.seen_ns, more.seen_ns))


def complete(record: Record, monitored: Monitored) -> Record:
    """With the samples of its lowest rank, and what follows from them."""
    steps = next((rank for rank in monitored.ranks if rank.steps), None)
    if steps is None:
        return replace(record, status="skipped", message=NO_STEP, monitored=monitored)
    number = len(steps.steps)
    tokens = count_tokens(monitored)
    flops = monitored.flops
    per_step = None
    if flops is not None:
        units = tokens if flops.unit == "token" else _count_micro_batches(monitored)
        per_step = None if units is None else flops.model * units
    return replace(
        record,
        status="ok",
        message=None,
        samples_ns={STEP: list(steps.time_ns)},
        rounds=list(steps.steps),
        calls_per_sample=[1] * number,
        warmup_samples=min(monitored.first_steps, number // 2),
        facts={**record.facts, **({} if not tokens else {"tokens": tokens})},
        flops={STEP: {flops.dtype: per_step}} if flops is not None and per_step else {},
        conditions=record.conditions if flops is None else {"dtype": flops.dtype},
        peak_memory_bytes=_find_peak_bytes(steps),
        throttled=list(
            dict.fromkeys(
                event.name
                for rank in monitored.ranks
                for event in rank.events
                if event.kind == "throttled"
            )
        ),
        monitored=monitored,
    )


def count_tokens(monitored: Monitored, *, padded: bool = False) -> float | None:
    """Of a step of all ranks, on average; useful ones, or all that were computed. None: unknown."""
    usual = monitored.tokens_per_step
    # A step that does not say otherwise has the run's.
    share = None if usual is None else usual / monitored.data_parallel
    found: list[float | None] = [
        computed if padded and computed is not None else share if useful is None else useful
        for rank in monitored.ranks
        for useful, computed in zip(rank.tokens, rank.padded_tokens, strict=True)
    ]
    known = [tokens for tokens in found if tokens is not None]
    return fmean(known) * monitored.data_parallel if known else usual


def _count_micro_batches(monitored: Monitored) -> float | None:
    found = [number for rank in monitored.ranks for number in rank.micro_batches if number]
    return fmean(found) * monitored.data_parallel if found else None


def _find_peak_bytes(steps: RankSteps) -> int | None:
    peaks = [r.peak_memory_bytes for r in steps.readings if r.peak_memory_bytes is not None]
    return max(peaks, default=None)


def join_ranks(records: Sequence[Record]) -> list[Record]:
    """The same, with ranks of one run put together whose nodes had files of their own."""
    found: dict[object, Record] = {}
    for record in records:
        key = (record.run_id, record.case_id) if record.monitored is not None else len(found)
        known = found.get(key)
        found[key] = record if known is None else _merge(known, record)
    return list(found.values())


def _merge(one: Record, two: Record) -> Record:
    first, second = sorted((one, two), key=_rank)
    assert first.monitored is not None
    assert second.monitored is not None
    ranks = {rank.rank: rank for each in (second, first) for rank in each.monitored.ranks}  # type: ignore[union-attr]
    return complete(
        replace(first, notes=[*dict.fromkeys([*first.notes, *second.notes])]),
        replace(
            first.monitored,
            flops=first.monitored.flops or second.monitored.flops,
            ranks=[ranks[number] for number in sorted(ranks)],
        ),
    )


def _rank(record: Record) -> int:
    return 0 if record.monitored is None else record.monitored.rank
