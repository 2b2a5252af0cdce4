"""What a worker and the runner share: a pipe of JSON lines, and a board of two numbers.

The board is shared memory that holds which variant is in work and at which stage. A process that
dies by a signal sends no message; the board still shows what it was measuring.

Samples and points are sent in batches while they are taken. When the runner asks the worker to end,
the worker sends its last batch first, so that nothing is lost.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

from flopwatch.devices.base import Backend
from flopwatch.records.record import Rank, Region
from flopwatch.worker.messages import (
    Broken,
    Failed,
    NewSamples,
    Points,
    Refused,
    Report,
    Restart,
    Samples,
    Sources,
    encode,
)
from flopwatch.worker.sampling import Observer, Progress, Series

STAGES = (
    "starting",
    "loading",
    "joining",
    "call",
    "build",
    "check",
    "reference",
    "sampling",
    "memory",
    "curves",
    "finish",
)
NO_CONTROL = "none"
"""For a spawned worker, in place of its control socket: it serves one request only."""
TAKEN = b"t"
"""Its answer to a further request, which it is about to serve."""
NO_VARIANT = -1
BOARD = array("i", [NO_VARIANT, 0])


class Posted(NamedTuple):
    variant_index: int | None
    stage: str


class Board:
    """Two numbers: the index of the variant in work (or NO_VARIANT), and that of the stage.

    Only the process that has opened it writes to it. Where a phase forks and returns in both
    processes, the child would go on as a second worker: it ends as soon as it gets here.
    """

    def __init__(self, descriptor: int) -> None:
        self._numbers = memoryview(mmap.mmap(descriptor, len(BOARD.tobytes()))).cast("i")
        self._pid = os.getpid()

    def write(self, variant_index: int, stage: str) -> None:
        self.end_copy()
        self._numbers[1] = STAGES.index(stage)
        self._numbers[0] = variant_index

    def point_at(self, variant_index: int) -> None:
        """Only the variant: cheap enough to be done before every sample."""
        self.end_copy()
        self._numbers[0] = variant_index

    def read(self) -> Posted:
        """What a worker has written, which may be anything."""
        index, stage = self._numbers
        known = STAGES[stage] if 0 <= stage < len(STAGES) else "an unknown stage"
        return Posted(index if index >= 0 else None, known)

    def end_copy(self) -> None:
        """End this process if it was forked from the one that has opened the board."""
        if os.getpid() != self._pid:
            os._exit(0)


def make_board() -> tuple[IO[bytes], Board]:
    """A file to hand to a worker, and the runner's view of the same memory."""
    file = make_file(BOARD.tobytes())
    return file, Board(file.fileno())


def make_file(content: bytes) -> IO[bytes]:
    """A file to hand to a worker."""
    # In memory where the system has that: a full disk should not keep anyone from measuring.
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("flopwatch"), "r+b")
    else:
        file = tempfile.TemporaryFile()
    file.write(content)
    file.flush()
    return file


class Channel:
    """The worker's end."""

    def __init__(self, events_descriptor: int, board: Board) -> None:
        self._descriptor = events_descriptor
        self._busy = 0
        self._ending = False
        self._send_last: Callable[[], None] = lambda: None
        self.board = board
        self.has_failed = False
        """Whether anything went wrong, so that the process should serve nobody else."""
        self.sources: dict[str, str] = {}
        """Of the files that were reported as sources, as they were at first."""

    def send(self, report: Report) -> None:
        self.board.end_copy()
        self.has_failed = self.has_failed or _is_failure(report)
        if isinstance(report, Sources):
            self.sources = {**report.sources, **self.sources}
        data = memoryview(encode(report))
        with self.busy():
            while data:
                data = data[os.write(self._descriptor, data) :]

    def on_terminate(self, send_last: Callable[[], None]) -> None:
        """On SIGTERM, call this and end the process."""
        self._send_last = send_last
        signal.signal(signal.SIGTERM, self._on_terminate)

    def let_go(self) -> None:
        """Of what is sent on SIGTERM, and all that it refers to."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._send_last = lambda: None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Meanwhile SIGTERM waits: a message cut in two would be none."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
        if self._ending and not self._busy:
            self._end()

    def _on_terminate(self, number: int, frame: object) -> None:
        self._ending = True
        if not self._busy:
            self._end()

    def _end(self) -> None:
        self._busy += 1  # once is enough
        try:
            self._send_last()
        finally:
            os._exit(0)


def _is_failure(report: Report) -> bool:
    if isinstance(report, Failed):
        return report.failure.status != "unsupported"
    return isinstance(report, Broken | Refused | Restart)


SEND_EVERY_S = 0.25
"""Seldom enough not to disturb, often enough to lose little and not to be taken for hung."""


class SampleStream(Observer):
    """Follows a sampler and sends its new samples. `index` is each variant's on the board."""

    def __init__(
        self,
        channel: Channel,
        target: Backend,
        index: Mapping[str, int],
        fail: Callable[[str, Exception], None],
    ) -> None:
        self._channel = channel
        self._target = target
        self._index = index
        self._fail = fail
        self._series: Sequence[Series] = ()
        self._sent: dict[str, int] = {}
        self._sent_instrumented: dict[str, int] = {}
        self._last_s = time.monotonic()
        self._progress: Progress | None = None
        channel.on_terminate(self.send)

    def begin(self, series: Sequence[Series]) -> None:
        self._series = series
        self._sent = dict.fromkeys((one.variant for one in series), 0)
        self._sent_instrumented = dict(self._sent)

    def announce(self, variant: str) -> None:
        # Before every run, not after every round: a round of many slow variants takes long.
        if time.monotonic() - self._last_s >= SEND_EVERY_S:
            self.send()
        self._channel.board.point_at(self._index[variant])

    def fail(self, variant: str, error: Exception) -> None:
        self._fail(variant, error)

    def observe(self, progress: Progress) -> None:
        self._progress = progress

    def send(self) -> None:
        with self._channel.busy():
            self._target.look()
            self._last_s = time.monotonic()
            samples = {one.variant: self._take_new(one) for one in self._series}
            self._channel.send(Samples(samples=samples, progress=self._progress))

    def _take_new(self, one: Series) -> NewSamples:
        # Calls, and whole instrumented runs, are appended last: what they cover is complete, even
        # where this is called in the middle of a round because the worker is to end.
        start, end = self._sent[one.variant], len(one.calls_per_sample)
        first, last = self._sent_instrumented[one.variant], len(one.instrumented_ns)
        self._sent[one.variant], self._sent_instrumented[one.variant] = end, last
        phases = list(one.workload.phases)
        return NewSamples(
            samples_ns=_split_phases(phases, one.phase_ns[start:end]),
            rounds=one.rounds[start:end],
            calls_per_sample=one.calls_per_sample[start:end],
            queue=one.describe_queue(start, end),
            ranks=[
                Rank(
                    samples_ns=_split_phases(phases, [share.phase_ns for share in shares]),
                    waiting_ns=[share.waiting_ns for share in shares],
                    transfer_ns=[share.transfer_ns for share in shares],
                    overlapped_ns=[share.overlapped_ns for share in shares],
                    # Of a job whose first call is a check, the other ones say what it has.
                    bubble_ns=[share.bubble_ns for share in shares],
                )
                for shares in zip(*one.shares[start:end], strict=True)
            ],
            instrumented_ns=_round(one.instrumented_ns[first:last]),
            regions={
                name: Region(calls=region.calls, samples_ns=_round(region.samples_ns[first:last]))
                for name, region in one.regions.items()
            },
        )


class PointStream:
    """Sends the points of one variant's curves."""

    def __init__(self, channel: Channel, variant: str) -> None:
        self._channel = channel
        self._variant = variant
        self._points: list[dict[str, float]] = []
        self._last_s = time.monotonic()
        channel.on_terminate(self.send)

    def add(self, point: dict[str, float]) -> None:
        self._points.append(point)
        if time.monotonic() - self._last_s >= SEND_EVERY_S:
            self.send()

    def send(self) -> None:
        with self._channel.busy():
            self._last_s = time.monotonic()
            points, self._points = self._points, []
            self._channel.send(Points(variant=self._variant, points=points))


def _split_phases(
    phases: Sequence[str], rows_ns: Sequence[Sequence[float]]
) -> dict[str, list[float]]:
    """By phase, from one row a sample."""
    return {
        phase: _round(times_ns)
        for phase, times_ns in zip(phases, zip(*rows_ns, strict=True), strict=False)
    }


def _round(times_ns: Sequence[float]) -> list[float]:
    # Never 0: what a coarse clock cannot see still took some time.
    return [max(round(ns, 1), 0.1) for ns in times_ns]
