"""From a worker's messages to records.

A group has one record for each variant from the start, which every message of its worker completes,
so that whatever happens to the worker, what it had measured can be stored.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import singledispatchmethod
from typing import Any

import msgspec

from flopwatch.jobs.parallelism import name_stages
from flopwatch.jobs.training_job import read_job
from flopwatch.records.record import Queue, Rank, Record, Region
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings
from flopwatch.worker import messages
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import BrokenMessage, NewSamples
from flopwatch.worker.sampling import Progress


class RecordBuilder:
    """The records of one group, from all that one worker reports about it."""

    def __init__(self, group: Group, *, run: str, settings: Settings) -> None:
        self.records = {
            variant: Record(
                case_id=group.case_id(variant),
                group_id=group.id,
                run_id=run,
                suite=group.suite,
                variant=variant,
                baseline=group.baseline,
                params=dict(group.params),
                status="ok",
                kind="parts" if variant in group.parts else "whole",
                parts_of=group.parts.get(variant),
                layout=group.layout,
                job=group.jobs.get(variant),
                predicted_memory_bytes=dict(group.memory.get(variant, {})),
                prediction=group.predictions.get(variant),
                settings=settings,
            )
            for variant in group.variants
        }
        self.finished: messages.Finished | None = None
        self.progress: Progress | None = None
        self.needs_restart = False
        """Whether the worker has asked for new processes for what is left."""
        self.broken: messages.Broken | None = None
        """The report that the suite could not be loaded, or ranks could not meet."""
        self._curves_to_come: set[str] = set()
        """Once sampling is finished: variants whose curves are still to be taken."""
        self._sources: dict[str, str] = {}
        self._to_build = sorted(group.variants, key=lambda variant: variant != group.baseline)
        """Variants that are not reported as built, in the order in which workers build them."""

    @property
    def in_building(self) -> str | None:
        """The variant that the next reports must be about; None once all are built."""
        left = [variant for variant in self._to_build if self.records[variant].status == "ok"]
        return left[0] if left else None

    def list_ok(self) -> list[str]:
        """The variants that have not failed."""
        return [variant for variant, record in self.records.items() if record.status == "ok"]

    @property
    def has_failures(self) -> bool:
        """Whether anything went wrong, other than that a variant is not supported."""
        return self.broken is not None or any(
            record.status not in ("ok", "unsupported") for record in self.records.values()
        )

    def list_unfinished(self) -> list[str]:
        """Those that have not failed, but would be cut short if the worker ended now."""
        return [variant for variant in self.list_ok() if self._is_cut_short(variant)]

    def _is_cut_short(self, variant: str) -> bool:
        return self.finished is None or variant in self._curves_to_come

    def fail(self, variant: str, failure: Failure) -> None:
        job, message = self.records[variant].job, failure.message
        if job is not None and "seq_len" in job:
            message = name_stages(message, read_job(job).parallelism)
        self._update(variant, status=failure.status, message=message, cause=failure.cause)

    def _update(self, variant: str, **changes: Any) -> None:
        self.records[variant] = replace(self._find(variant), **changes)

    def _find(self, variant: str) -> Record:
        if variant not in self.records:
            raise BrokenMessage(f"a report about {variant!r}, which is not measured here")
        return self.records[variant]

    @singledispatchmethod
    def take(self, report: messages.Report) -> None:
        """Add one report of the worker."""
        raise BrokenMessage(f"{type(report).__name__} is no report about a group")

    @take.register
    def _(self, report: messages.Sources) -> None:
        self._sources = report.sources

    @take.register(messages.Built | messages.Memory)
    def _(self, report: messages.Built | messages.Memory) -> None:
        changes = msgspec.structs.asdict(report)
        variant = changes.pop("variant")
        if changes.get("job") is None:  # then what the suite said before it was built stays
            changes.pop("job", None)
        self._update(variant, **changes)
        if variant in self._to_build:
            self._to_build.remove(variant)

    @take.register
    def _(self, report: messages.Failed) -> None:
        if report.check is not None:
            self._update(report.variant, check=report.check)
        self.fail(report.variant, report.failure)
        self._curves_to_come.discard(report.variant)

    @take.register
    def _(self, report: messages.Samples) -> None:
        for variant, new in report.samples.items():
            if new.queue is not None and self._find(variant).queue is None:
                self._update(variant, queue=Queue(enqueue_ns=[], drain_ns=[]))
            _add_samples(self._find(variant), new)
        self.progress = report.progress

    @take.register
    def _(self, report: messages.Finished) -> None:
        self.finished = report
        self._curves_to_come = set(report.curves)
        for variant, timeline in report.timelines.items():
            self._update(variant, timeline=timeline)

    @take.register
    def _(self, report: messages.Points) -> None:
        curves = self._find(report.variant).curves
        for point in report.points:
            for name, value in point.items():
                curves.setdefault(name, []).append(value)

    @take.register
    def _(self, report: messages.CurvesTaken) -> None:
        self._curves_to_come.discard(report.variant)
        if report.note is not None:
            notes = self._find(report.variant).notes
            self._update(report.variant, notes=[*notes, report.note])

    @take.register
    def _(self, report: messages.Broken) -> None:
        self.broken = report

    @take.register
    def _(self, report: messages.Restart) -> None:
        self.needs_restart = True

    def finish(
        self, variant: str, environment: dict[str, Any], *, interrupted: bool = False
    ) -> Record:
        """The record, with what is known once the worker has ended."""
        finished = self.finished or messages.Finished(stop_reason=None)
        stop_reason = finished.stop_reason
        if interrupted and self._is_cut_short(variant):
            stop_reason = "interrupted"
        taken = len(self.records[variant].rounds)
        warmup_samples = None if self.progress is None else self.progress.warmup_rounds
        if warmup_samples is None or warmup_samples >= taken:
            warmup_samples = taken
            if interrupted and self.records[variant].status == "ok":
                message = "interrupted before its warm-up was over"
                self.fail(variant, Failure("skipped", message, "interrupted"))
        for rank in self.records[variant].ranks:
            if not any(ns is not None for ns in rank.bubble_ns):  # there is no pipeline
                rank.bubble_ns.clear()
        return replace(
            self.records[variant],
            warmup_samples=warmup_samples,
            steady=self.progress.steady if taken and self.progress else None,
            stop_reason=stop_reason if taken else None,
            rebuilt_rounds=finished.rebuilt_rounds,
            throttled=finished.throttled,
            environment={**environment, "gpus": finished.gpus} if finished.gpus else environment,
            sources=self._sources,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _add_samples(record: Record, new: NewSamples) -> None:
    record.rounds.extend(new.rounds)
    record.calls_per_sample.extend(new.calls_per_sample)
    if record.queue is not None and new.queue is not None:
        record.queue.enqueue_ns.extend(new.queue.enqueue_ns)
        record.queue.drain_ns.extend(new.queue.drain_ns)
    _extend(record.samples_ns, new.samples_ns)
    for rank, more in enumerate(new.ranks):
        if rank == len(record.ranks):
            record.ranks.append(Rank(samples_ns={}, waiting_ns=[], transfer_ns=[]))
        _extend(record.ranks[rank].samples_ns, more.samples_ns)
        record.ranks[rank].waiting_ns.extend(more.waiting_ns)
        record.ranks[rank].transfer_ns.extend(more.transfer_ns)
        record.ranks[rank].overlapped_ns.extend(more.overlapped_ns)
        record.ranks[rank].bubble_ns.extend(more.bubble_ns)
    record.instrumented_ns.extend(new.instrumented_ns)
    for name, region in new.regions.items():
        known = record.regions.setdefault(name, Region(calls=region.calls, samples_ns=[]))
        known.samples_ns.extend(region.samples_ns)


def _extend(samples_ns: dict[str, list[float]], more_ns: dict[str, list[float]]) -> None:
    for phase, times_ns in more_ns.items():
        samples_ns.setdefault(phase, []).extend(times_ns)
