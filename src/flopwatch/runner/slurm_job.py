"""In a job of Slurm: measure one part of a sweep, as a run on this machine would.

submitit calls `run_part` in every task of the job: that of rank 0 measures, the others serve as
ranks. What Slurm announces is answered in time: shortly before the time limit nothing more is
begun, and when the job is cancelled or preempted, what has been sampled is stored.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from flopwatch.devices.slurm_facts import read_slurm
from flopwatch.errors import FlopwatchError, StoreError
from flopwatch.output.progress import PlainWatcher
from flopwatch.runner import session
from flopwatch.runner.group_runner import Interrupts
from flopwatch.runner.schedule import Group
from flopwatch.runner.slurm_sweep import (
    DONE,
    FAILED,
    INTERRUPTED,
    STOPPED_EARLY,
    Attempt,
    Ending,
    read_sweep,
)
from flopwatch.runner.torchrun_launcher import find_place


def run_part(folder: str, number: int) -> None:
    place = find_place()
    if place is not None and place.rank > 0:
        session.serve_rank(place)
        return
    slurm = read_slurm() or {}
    attempt = Attempt(Path(folder), number, slurm.get("restarts", 0))
    attempt.begin(slurm)
    warnings = Warnings()
    try:
        ending = _measure(Path(folder), number, attempt, warnings)
    except KeyboardInterrupt:
        ending = Ending(why=INTERRUPTED)
    except FlopwatchError as error:
        ending = Ending(why=FAILED, error=str(error))
    # The job's log: where the disk is full, it is all that can still be told.
    print(f"{ending.why}: {ending.error}" if ending.error else ending.why, flush=True)  # noqa: T201
    with suppress(StoreError):
        attempt.end(ending)
    if ending.why == FAILED:
        sys.exit(1)


def _measure(folder: Path, number: int, attempt: Attempt, warnings: Warnings) -> Ending:
    from rich.console import Console

    sweep = read_sweep(folder)
    part = sweep.parts[number]
    report = session.run_groups(
        replace(sweep.options, out=attempt.records_path),
        part.groups,
        _JobWatcher(attempt, Console()),
        interrupts=warnings.interrupts,
        request=part.request,
        known=attempt.read_earlier(),
    )
    if not report.interrupted:
        return Ending(why=DONE)
    return Ending(why=INTERRUPTED if warnings.is_urgent else STOPPED_EARLY)


class Warnings:
    """Slurm's signals, as the runner takes Ctrl-C: the one before the time limit like the first,
    the one before the end like the second."""

    def __init__(self) -> None:
        self.interrupts = Interrupts()
        self.is_urgent = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGURG, self._stop_soon)
        signal.signal(signal.SIGTERM, self._stop_now)

    def _stop_soon(self, number: int, frame: FrameType | None) -> None:
        if not self.interrupts.count:
            signal.raise_signal(signal.SIGINT)

    def _stop_now(self, number: int, frame: FrameType | None) -> None:
        self.is_urgent = True
        self.interrupts.enough = 1
        signal.raise_signal(signal.SIGINT)


class _JobWatcher(PlainWatcher):
    """Says in a file which group is being measured: should the job be killed, it is to blame."""

    def __init__(self, attempt: Attempt, console: Any) -> None:
        super().__init__(console)
        self._attempt = attempt

    def begin_group(self, group: Group) -> None:
        self._attempt.begin_group(group)
        super().begin_group(group)
