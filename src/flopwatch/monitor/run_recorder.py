"""The thread of a monitor that makes times of marks, has them stored and tells trackers.

It wakes up about once a second, and never holds up the loop: the loop appends to lists, and this
reads them. What goes wrong here ends the monitor at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flopwatch.devices.base import PolledClock
from flopwatch.devices.meters import DeviceMeters, Meters
from flopwatch.monitor.base import StepFacts, Tracker
from flopwatch.monitor.flops_sources import FlopsAnswer, FlopsRequest, find_flops
from flopwatch.monitor.run_lines import RunLines, RunRequest
from flopwatch.monitor.step_marks import Mark, StepMarks, StepTimes, host_elapsed_ns, measure
from flopwatch.monitor.step_report import Reporter
from flopwatch.records.monitored import End, MeterReading, MonitoredEvent

if TYPE_CHECKING:
    from flopwatch.models.module_flops import Call

FLUSH_S = 0.7
"""Less than a second, since a killed job may lose at most that."""
RANKS_PER_FLUSH = 64
"""So many ranks can append to one file in that time; of more, all but rank 0 do so less often."""
READING_S = 5.0
"""Between two readings of meters that are stored."""
CLOSE_LIMIT_S = 15.0
"""For the last lines: a training that has ended should not wait for a disk for long."""
LAST_LIMIT_S = 5.0
"""At the end, for the device to pass the last marks, and for FLOPs to be counted."""


class RunRecorder:
    def __init__(
        self,
        request: RunRequest,
        clock: PolledClock | None,
        meters: DeviceMeters,
        trackers: Sequence[Tracker],
        warn: Callable[[str], None],
        disable: Callable[[Exception], None],
    ) -> None:
        self.steps: deque[StepMarks] = deque()
        """That have ended."""
        self.events: deque[MonitoredEvent] = deque()
        self.call: Call | None = None
        """How the model was first called."""
        self.sums_gradients = False
        """Whether it is the loop itself that sums up gradients over ranks."""
        self.phase_memory_bytes: dict[str, int] = {}
        self.wants_memory = False
        """Whether the loop should note what tensors hold, in its next step."""
        self._request = request
        self._clock = clock
        self._device = meters
        self._warn = warn
        self._disable = disable
        self._lines = RunLines(request, warn)
        self._reporter = Reporter(request, trackers, warn)
        self._wake = threading.Event()
        self._end: End | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name="flopwatch monitor")
        self._counting: threading.Thread | None = None
        self._answer: FlopsAnswer | None = None
        self._is_answer_stored = False
        self._meters = Meters()
        self._read_at_ns = request.zero_ns
        self._stored_at_ns: int | None = None
        self.num_steps = 0

    @property
    def latest(self) -> StepFacts | None:
        return self._reporter.latest

    def start(self) -> None:
        """Writes the first line before it returns: whatever is killed then has left a trace."""
        self._meters = self._device.read()
        self._lines.begin()
        self._thread.start()

    def add_tracker(self, tracker: Tracker) -> None:
        self._reporter.add(tracker)

    def stop(self, end: End) -> None:
        """Have all that is left stored, without waiting for it."""
        self._end = self._end or end
        self._wake.set()

    def close(self, end: End) -> None:
        """From the loop's thread; returns when all is stored, or after some seconds."""
        self.stop(end)
        if self._thread.ident is None:
            return
        self._thread.join(CLOSE_LIMIT_S)
        if self._thread.is_alive():
            self._warn(f"the last steps were not stored within {CLOSE_LIMIT_S:g} s")
        else:
            self._reporter.join()

    # What follows runs in the thread.

    def _work(self) -> None:
        place = self._request.place
        crowd = max(1.0, place.world_size / RANKS_PER_FLUSH) if place.rank else 1.0
        try:
            end = None
            while end is None:
                self._wake.wait(FLUSH_S * crowd)
                end = self._end  # once: it may come while the steps before it are stored
                self._flush(end)
        except Exception as error:  # whatever it is, it must not reach the training
            self._disable(error)
        with suppress(Exception):
            self._reporter.finish(self._end or "disabled")
            self._lines.close()

    def _flush(self, end: End | None = None) -> None:
        """Store and tell what has happened since."""
        steps = self._take_steps(end is not None)
        self._look_for_flops(steps, end is not None)
        reading = self._read(end is not None)
        events = [self.events.popleft() for _ in range(len(self.events))]
        events += [pause for step in steps for pause in step.pauses]
        events = [_count_from(event, self._request.zero_ns) for event in events]
        news = None if self._is_answer_stored else self._answer
        self._is_answer_stored = self._answer is not None
        self._lines.add(steps, events, reading, news, end)
        self._lines.write()
        if self._answer is not None and self._lines.record is not None:
            self._reporter.start(self._lines.record, self._answer)
        self._reporter.tell(steps, events, self._meters)

    def _take_steps(self, is_last: bool) -> list[StepTimes]:
        """Those whose marks the device has passed, in order."""
        found: list[StepTimes] = []
        deadline_s = time.monotonic() + LAST_LIMIT_S
        while self.steps:
            if not self._has_passed(self.steps[0].end):
                if not is_last:
                    break
                if time.monotonic() > deadline_s:
                    self._lines.notes.append(f"the last {len(self.steps)} steps are missing")
                    break
                time.sleep(0.01)
                continue
            is_alone = self._request.place.world_size == 1
            step = measure(
                self.steps.popleft(),
                self._elapsed_ns,
                waits_for_ranks=self.sums_gradients and not is_alone,
            )
            if is_alone:
                step.parts_ns.pop("communication", None)
            found.append(step)
        self.num_steps += len(found)
        return found

    def _has_passed(self, mark: Mark) -> bool:
        return self._clock is None or mark.event is None or self._clock.has_passed(mark.event)

    def _elapsed_ns(self, start: Mark, end: Mark) -> float:
        if self._clock is None or start.event is None or end.event is None:
            return host_elapsed_ns(start, end)
        return self._clock.between_ns(start.event, end.event)

    def _look_for_flops(self, steps: Sequence[StepTimes], is_last: bool) -> None:
        """In yet another thread: a large model takes seconds."""
        if self._counting is None and (steps or is_last):
            micro_batches = steps[0].micro_batches if steps else 1
            asked = replace(self._request.flops, grad_accum=max(1, micro_batches))
            self._counting = threading.Thread(
                target=self._count, args=(asked,), daemon=True, name="flopwatch FLOPs"
            )
            self._counting.start()
        if self._counting is not None and is_last:
            self._counting.join(LAST_LIMIT_S)

    def _count(self, asked: FlopsRequest) -> None:
        try:
            self._answer = find_flops(asked, self.call)
        except Exception as error:
            self._answer = FlopsAnswer(missing=f"FLOPs are not known ({error})"[:300])

    def _read(self, is_last: bool) -> MeterReading | None:
        """The meters, and what they show to have happened since they were last read."""
        now_ns = time.perf_counter_ns()
        before, found = self._meters, self._device.read()
        since: dict[str, Any] = {
            "begin_ns": self._read_at_ns,
            "duration_ns": now_ns - self._read_at_ns,
        }
        for reason in found.throttle_reasons:
            self.events.append(MonitoredEvent(kind="throttled", name=reason, **since))
        retries = (found.allocator_retries or 0) - (before.allocator_retries or 0)
        if retries > 0:
            self.events.append(
                MonitoredEvent(kind="allocator-retry", name=f"{retries} times", **since)
            )
        self._meters, self._read_at_ns = found, now_ns
        is_new = self._stored_at_ns is None or now_ns - self._stored_at_ns > READING_S * 1e9
        if not is_new and not is_last:
            return None
        self._stored_at_ns = now_ns
        held_bytes, self.phase_memory_bytes = self.phase_memory_bytes, {}
        self.wants_memory = True
        return MeterReading(
            at_ns=now_ns - self._request.zero_ns,
            energy_j=found.energy_j,
            power_w=found.power_w,
            memory_bytes=found.memory_bytes,
            peak_memory_bytes=found.peak_memory_bytes,
            phase_memory_bytes=held_bytes,
        )


def _count_from(event: MonitoredEvent, zero_ns: int) -> MonitoredEvent:
    return replace(event, begin_ns=max(0.0, event.begin_ns - zero_ns))
