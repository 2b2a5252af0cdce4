"""What a monitor writes into its results file: the first line of a run, and those that continue it.

Where the disk is full, lines are kept until there is room again; where the file cannot be written
at all, the run goes on without it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flopwatch.devices import environment
from flopwatch.devices.measured_peaks import find_peaks, shorten
from flopwatch.errors import DiskFull, FlopwatchError
from flopwatch.monitor.flops_sources import FlopsAnswer, FlopsRequest
from flopwatch.monitor.run_identity import RankPlace, RunIdentity, agree, has_first_line
from flopwatch.monitor.step_marks import PARTS, StepTimes
from flopwatch.records.joined_runs import NO_STEP
from flopwatch.records.monitored import (
    Continuation,
    End,
    MeterReading,
    Monitored,
    MonitoredEvent,
    RankSteps,
    encode_continuation,
)
from flopwatch.records.record import Record, encode
from flopwatch.records.store import Store
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, group_id
from flopwatch.worker import allocator

SUITE = "monitor"
MOST_KEPT_BYTES = 64 * 2**20
"""Of lines that cannot be written for now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What is to be recorded."""

    name: str
    params: Mapping[str, Any]
    out: Path | None
    place: RankPlace
    number: int
    """Of the monitor, in this process."""
    device: str
    clock: str
    tokens_per_step: float | None
    first_step: int
    first_steps: int
    flops: FlopsRequest
    parameters: int | None
    trainable_parameters: int | None
    is_live: bool
    started_unix_s: float
    zero_ns: int


class RunLines:
    """Of one rank. All of it is called by one thread."""

    def __init__(self, request: RunRequest, warn: Callable[[str], None]) -> None:
        self.record: Record | None = None
        """The run's first line, if this rank needs it."""
        self.notes: list[str] = []
        """For the next line."""
        self._request = request
        self._warn = warn
        self._out = request.out
        self._store: Store | None = None
        self._identity: RunIdentity | None = None
        self._unwritten: deque[bytes] = deque()
        self._is_full = False

    @property
    def run_id(self) -> str:
        assert self._identity is not None
        return self._identity.run_id

    def begin(self) -> None:
        """Agree with other ranks, and write the first line if it is this one's to write."""
        place, out = self._request.place, self._out
        self._identity = identity = agree(place, self._request.number)
        if identity.note is not None:
            self.notes.append(identity.note)
        if identity.is_first or place.rank == 0:
            self.record = self._make_first_line()
        if out is None:
            return
        if not identity.is_first:
            identity.wait_for_first_line()
        # Where nodes share no disk, each has a file of its own.
        if identity.is_first or not has_first_line(out, identity.run_id):
            self.record = self.record or self._make_first_line()
            self._unwritten.append(encode(self.record) + b"\n")
        self.write()
        if identity.is_first:
            identity.announce()

    def add(
        self,
        steps: Sequence[StepTimes],
        events: Sequence[MonitoredEvent],
        reading: MeterReading | None,
        answer: FlopsAnswer | None,
        end: End | None,
    ) -> None:
        """What has happened since the line before; nothing has, where all are empty."""
        is_empty = not any((steps, events, self.notes, reading, answer, end))
        if self._out is None or is_empty:
            return
        params = dict(self._request.params)
        line = Continuation(
            case_id=case_id(SUITE, self._request.name, params),
            group_id=group_id(SUITE, params),
            run_id=self.run_id,
            continued=self._describe_rank(steps, events, reading),
            flops=None if answer is None else answer.flops,
            flops_missing=None if answer is None else answer.missing,
            job=None if answer is None or answer.job is None else answer.job.to_dict(),
            notes=self.notes,
            end=end,
        )
        self.notes = []
        self._unwritten.append(encode_continuation(line) + b"\n")

    def write(self) -> None:
        """What is not written yet."""
        if self._out is None or not self._unwritten:
            return
        try:
            if self._store is None:
                self._store = Store.open(self._out, say=self._warn)
                if self._store.repaired is not None:
                    self._warn(self._store.repaired)
            while self._unwritten:
                self._store.append_line(self._unwritten[0])
                self._unwritten.popleft()
            self._is_full = False
        except DiskFull as error:
            if not self._is_full:
                wrong = str(error).partition(";")[0]
                self._warn(f"{wrong}; steps are kept in memory until there is room again")
            self._is_full = True
            while sum(map(len, self._unwritten)) > MOST_KEPT_BYTES:
                del self._unwritten[1]  # never the first line
        except FlopwatchError as error:
            self._out = None
            self._unwritten.clear()
            self._warn(f"nothing is stored any more: {error}")

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        if self._unwritten:
            self._warn(
                f"{self._out}: {len(self._unwritten)} lines were not stored; the disk is full"
            )

    def _make_first_line(self) -> Record:
        request, place = self._request, self._request.place
        found = _read_environment()
        threads = found.get("torch", {}).get("threads", 1)
        settings = Settings(device=request.device, threads=threads, allocator="default")
        peaks = find_peaks(found, settings)
        if peaks is not None:
            found["peaks"] = shorten(peaks)
        params, job = dict(request.params), request.flops.job
        started = datetime.fromtimestamp(request.started_unix_s, UTC)
        return Record(
            case_id=case_id(SUITE, request.name, params),
            group_id=group_id(SUITE, params),
            run_id=self.run_id,
            suite=SUITE,
            variant=request.name,
            baseline=request.name,
            params=params,
            status="skipped",
            message=NO_STEP,
            job=None if job is None else job.to_dict(),
            facts={"parameters": float(request.parameters)} if request.parameters else {},
            settings=settings,
            environment=found,
            measured_at=started.isoformat(timespec="seconds"),
            monitored=Monitored(
                rank=place.rank,
                world_size=place.world_size,
                data_parallel=request.flops.data_parallel,
                started_unix_s=request.started_unix_s,
                clock=request.clock,
                tokens_per_step=request.tokens_per_step,
                first_steps=request.first_steps,
            ),
        )

    def _describe_rank(
        self,
        steps: Sequence[StepTimes],
        events: Sequence[MonitoredEvent],
        reading: MeterReading | None,
    ) -> RankSteps:
        zero_ns = self._request.zero_ns
        return RankSteps(
            rank=self._request.place.rank,
            zero_unix_s=self._request.started_unix_s,
            seen_ns=time.perf_counter_ns() - zero_ns,
            steps=[step.number for step in steps],
            begin_ns=[step.begin_ns - zero_ns for step in steps],
            time_ns=[round(step.time_ns) for step in steps],
            parts_ns={
                part: [
                    round(step.parts_ns[part]) if part in step.parts_ns else None for step in steps
                ]
                for part in PARTS
                if any(part in step.parts_ns for step in steps)
            },
            arrived_ns=[
                None if step.arrived_ns is None else step.arrived_ns - zero_ns for step in steps
            ],
            micro_batches=[step.micro_batches for step in steps],
            tokens=[step.tokens for step in steps],
            padded_tokens=[step.padded_tokens for step in steps],
            events=list(events),
            readings=[] if reading is None else [reading],
        )


def _read_environment() -> dict[str, Any]:
    found = {
        **environment.machine(Path.cwd()),
        "allocator": allocator.apply("default"),  # which changes nothing
        "command": environment.read_command(sys.argv),
        "load": environment.load(),
    }
    if "torch" in sys.modules:
        found["torch"] = environment.torch_build()
    return found
