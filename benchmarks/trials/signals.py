"""Signals at random moments to the runner, the server, its watcher, a worker or a rank.

Whatever is hit, no acknowledged record may be lost, nothing may hang or be left behind, not even a
process in a session of its own. If the runner was not hit, the run goes on to its end, with a row
for every case; if it was, the next run finishes what is missing.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flopwatch.errors import FlopwatchError
from flopwatch.records.store import read
from trials.trial import FLOPWATCH, Done, Outcome, run

GROUPS = 8
SUITE = f"""
import subprocess

import flopwatch

suite = flopwatch.Suite("signals", axes={{"number": list(range({GROUPS}))}}, variants=["a", "b"])


@suite.build
def build(case):
    LEAVE
    return lambda: sum(range(200))
"""
RANKS = f"""
import subprocess

import torch
from torch import distributed

import flopwatch

suite = flopwatch.Suite(
    "signals", axes={{"ranks": [2], "number": list(range({GROUPS}))}}, variants=["a", "b"]
)


@suite.build
def build(case):
    LEAVE
    x = torch.ones(8)
    return lambda: distributed.all_reduce(x.clone())
"""
LEAVE = 'subprocess.Popen(("sleep", "600"), start_new_session=True)'
OPTIONS = ("--case-budget", "30ms", "--timeout", "5s", "--memory-limit", "2G")
STARTED_S = 60.0
RUNNER_SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGSTOP", "SIGQUIT")
CHILD_SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGSTOP", "SIGSEGV", "SIGINT")
TARGETS = ("runner", "watcher", "server", "worker")


@dataclass
class Meddler:
    """Sends the signal, and remembers what had been acknowledged before."""

    target: str
    signal: signal.Signals
    delay_s: float
    folder: Path
    seed: int
    missed: bool = False
    """Whether there was no such process at that moment."""
    acknowledged: set[str] = field(default_factory=set)

    def __call__(self, runner: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + STARTED_S
        while time.monotonic() < deadline_s and runner.poll() is None and not self.read_lines():
            time.sleep(0.02)
        time.sleep(self.delay_s)
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            found = self.find_targets(psutil.Process(runner.pid))
            if not found:
                self.missed = True
                return
            self.acknowledged = self.read_lines()
            os.kill(random.Random(self.seed).choice(found), self.signal)
        if self.target == "runner" and self.signal == signal.SIGSTOP:
            time.sleep(1.0)  # a user's Ctrl-Z, and fg
            with suppress(ProcessLookupError):
                os.kill(runner.pid, signal.SIGCONT)

    def find_targets(self, runner: psutil.Process) -> list[int]:
        found = [runner]
        for _ in range(TARGETS.index(self.target)):  # each is the parent of the next
            found = [
                child
                for process in found
                for child in process.children()
                if "flopwatch.worker.server" in child.cmdline()
            ]
        return [process.pid for process in found]

    def read_lines(self) -> set[str]:
        """Numbers of the groups whose line has been printed."""
        return set(re.findall(r"number=(\d+):", (self.folder / "stderr").read_text()))


def try_signal(seed: int) -> Outcome:
    generator = random.Random(seed)
    target = generator.choice(TARGETS)
    name = generator.choice(RUNNER_SIGNALS if target == "runner" else CHILD_SIGNALS)
    has_ranks = generator.random() < 0.2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Killing the watcher is the one way to leave such a process behind.
        leave = LEAVE if target != "watcher" else "pass"
        suite = RANKS if has_ranks else SUITE
        (folder / "signals.py").write_text(suite.replace("LEAVE", leave))
        meddler = Meddler(
            target=target,
            signal=signal.Signals[name],
            delay_s=generator.uniform(0, 0.8),
            folder=folder,
            seed=seed,
        )
        command = [*FLOPWATCH, "run", "signals.py", "--out", "out.jsonl", *OPTIONS]
        done = run(command, folder, meddle=meddler)
        failures = [*judge(done, meddler, folder / "out.jsonl")]
        if target == "runner" and not failures:
            again = run(command, folder)
            failures = [f"again: {f}" for f in (*again.list_failures(), *find_missing(folder))]
    kind = " of 2 ranks" if has_ranks else ""
    return Outcome(
        part="signals", name=f"{seed}: {name} to {target}{kind}", failures=tuple(failures)
    )


def judge(done: Done, meddler: Meddler, out: Path) -> Iterator[str]:
    is_fatal = meddler.target == "runner"
    number = int(meddler.signal)
    yield from done.list_failures((0, 1, 130, 128 + number, -number) if is_fatal else (0, 1))
    yield from find_lost(out, meddler.acknowledged)
    if not is_fatal:
        yield from find_missing(out.parent)


def find_lost(out: Path, acknowledged: set[str]) -> Iterator[str]:
    try:
        stored = {str(record.params["number"]) for record in read(out).records}
    except (FlopwatchError, OSError) as error:
        yield f"unreadable results: {error}"
        return
    if acknowledged - stored:
        yield f"lost records: {len(acknowledged - stored)}"


def find_missing(folder: Path) -> Iterator[str]:
    """Cases without a row, once a run has come to its end."""
    records = read(folder / "out.jsonl").records
    rows = {(record.params["number"], record.variant) for record in records}
    missing = 2 * GROUPS - len(rows)
    if missing:
        yield f"did not go on: {missing} rows missing"
