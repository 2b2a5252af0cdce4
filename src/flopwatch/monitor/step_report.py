"""What is told of a run while it goes on: to trackers, of which the line on rank 0 is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flopwatch.analysis.record_device import (
    count_devices,
    describe_missing_peak,
    find_device_name,
    find_rank_peak,
    name_arithmetic,
)
from flopwatch.devices.meters import Meters
from flopwatch.monitor.base import RunFacts, StepFacts, Tracker
from flopwatch.monitor.flops_sources import FlopsAnswer
from flopwatch.monitor.live_steps import LiveSteps
from flopwatch.monitor.run_lines import RunRequest
from flopwatch.monitor.step_marks import PARTS, StepTimes
from flopwatch.monitor.tracker_thread import TrackerThread, join_all
from flopwatch.records.monitored import End, MonitoredEvent, Part
from flopwatch.records.record import Record


@dataclass(frozen=True, slots=True)
class _Held:
    """What waits until FLOPs are known."""

    steps: Sequence[StepTimes]
    events: Sequence[MonitoredEvent]
    meters: Meters


class Reporter:
    """Silent on all ranks but 0."""

    def __init__(
        self, request: RunRequest, trackers: Sequence[Tracker], warn: Callable[[str], None]
    ) -> None:
        self.latest: StepFacts | None = None
        self._request = request
        self._is_silent = request.place.rank != 0
        self._threads: list[TrackerThread] = []
        self._new = [LiveSteps(), *trackers] if request.is_live else list(trackers)
        """That were not told of the run yet."""
        self._warn = warn
        self._run: RunFacts | None = None
        self._held: list[_Held] = []
        self._parts: set[Part] = set()
        self._energy_j: float | None = None

    def add(self, tracker: Tracker) -> None:
        self._new.append(tracker)

    def start(self, record: Record, answer: FlopsAnswer) -> None:
        """FLOPs are known, or known to be unknown."""
        if self._run is None:
            self._run = describe_run(self._request, record, answer)

    def tell(
        self, steps: Sequence[StepTimes], events: Sequence[MonitoredEvent], meters: Meters
    ) -> None:
        if self._is_silent:
            return
        self._parts.update(*(step.parts_ns for step in steps))
        if steps:
            self._held.append(_Held(steps, events, meters))
        run = self._run
        if run is None or not self._held:
            return
        while self._new:
            self._threads.append(TrackerThread(self._new.pop(0), run, self._warn))
            self._threads[-1].start()
        for held in self._held:
            facts = self._describe(held, run)
            for thread in self._threads:
                thread.tell(facts)
            self.latest = facts[-1]
        self._held.clear()

    def finish(self, end: End) -> None:
        """Without waiting for anybody."""
        for thread in self._threads:
            thread.finish(end)

    def join(self) -> None:
        join_all(self._threads, self._warn)

    def _describe(self, held: _Held, run: RunFacts) -> list[StepFacts]:
        before, self._energy_j = self._energy_j, held.meters.energy_j
        energy_j = None
        if before is not None and self._energy_j is not None:
            energy_j = max(0.0, self._energy_j - before) / len(held.steps)
        return [
            describe_step(
                step, held.events, held.meters, energy_j, run, self._request, frozenset(self._parts)
            )
            for step in held.steps
        ]


def describe_run(request: RunRequest, record: Record, answer: FlopsAnswer) -> RunFacts:
    flops, place = answer.flops, request.place
    peak, missing = None, answer.missing
    if flops is not None:
        dtype = name_arithmetic(record, flops.dtype)
        peak = find_rank_peak(record, dtype)
        missing = describe_missing_peak(record, dtype) if peak is None else None
    return RunFacts(
        run_id=record.run_id,
        name=request.name,
        out=request.out,
        started_unix_s=request.started_unix_s,
        rank=place.rank,
        world_size=place.world_size,
        data_parallel=request.flops.data_parallel,
        device=request.device,
        device_name=find_device_name(record),
        devices=count_devices(record),
        parameters=request.parameters,
        trainable_parameters=request.trainable_parameters,
        tokens_per_step=request.tokens_per_step,
        flops=flops,
        peak_flops_per_s=None if peak is None else peak.flops_per_s,
        peak_source=None if peak is None else peak.source,
        missing=missing,
        params=request.params,
        notes=record.notes,
    )


def describe_step(
    step: StepTimes,
    events: Sequence[MonitoredEvent],
    meters: Meters,
    energy_j: float | None,
    run: RunFacts,
    request: RunRequest,
    parts: frozenset[Part],
) -> StepFacts:
    time_s = step.time_ns / 1e9
    tokens = run.tokens_per_step if step.tokens is None else step.tokens * run.data_parallel
    padded = tokens if step.padded_tokens is None else step.padded_tokens * run.data_parallel
    useful, computed = tokens, padded
    if run.flops is not None and run.flops.unit == "micro-batch":
        useful = computed = float(step.micro_batches * run.data_parallel)
    begin_ns, end_ns = step.begin_ns - request.zero_ns, step.end_ns - request.zero_ns
    return StepFacts(
        number=step.number,
        ended_unix_s=run.started_unix_s + end_ns / 1e9,
        time_s=time_s,
        parts_s={
            part: step.parts_ns[part] / 1e9 if part in step.parts_ns else None
            for part in PARTS
            if part in parts
        },
        other_s=max(0.0, time_s - sum(step.parts_ns.values()) / 1e9),
        paused_s=step.paused_ns / 1e9,
        is_first=step.number < request.first_step + request.first_steps,
        tokens=tokens,
        padded_tokens=padded,
        tokens_per_s=None if tokens is None else tokens / time_s,
        mfu=find_share(run, None if run.flops is None else run.flops.model, useful, time_s),
        hfu=find_share(run, None if run.flops is None else run.flops.hardware, computed, time_s),
        memory_bytes=meters.memory_bytes,
        peak_memory_bytes=meters.peak_memory_bytes,
        energy_j=energy_j,
        events=[e for e in events if begin_ns < e.begin_ns + e.duration_ns <= end_ns],
    )


def find_share(
    run: RunFacts, flops: float | None, units: float | None, time_s: float
) -> float | None:
    """Of the peak of all ranks; of what FLOPs are counted by (tokens), so many."""
    if flops is None or units is None or run.peak_flops_per_s is None:
        return None
    return flops * units / time_s / (run.world_size * run.peak_flops_per_s)
