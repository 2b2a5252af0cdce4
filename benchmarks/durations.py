"""How good are estimates of a run's duration? Before it starts, at a quarter, and at half of it.

Runs quick grids of the built-in suites and compares the whole time from the first group on, as it
was estimated at these moments, with what it took. The time that has passed is part of an estimate.
With --loaded, other processes keep all cores busy, so that times are several times as long.

    python benchmarks/durations.py                        about three minutes
    python benchmarks/durations.py --loaded
    python benchmarks/durations.py activations dyad
"""

from __future__ import annotations

import argparse
import io
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from flopwatch.output.progress import PlainWatcher
from flopwatch.records.record import Record
from flopwatch.runner import session
from flopwatch.runner.durations import Estimate
from flopwatch.runner.schedule import Group
from flopwatch.settings import QUICK, Settings

SUITES = ("activations", "attention", "dyad", "switchback", "steps", "training")
MOMENTS = {"start": 0.0, "25 %": 0.25, "50 %": 0.5}
REACH = 1.5


class EstimateWatcher(PlainWatcher):
    """Notes what the whole run is expected to take, at the start and after each group."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.estimates: list[tuple[float, float]] = []
        """Seconds that have passed, and that the whole is expected to take."""

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None:
        super().begin(groups, settings, estimate)
        self._started_s = time.monotonic()
        self._note()

    def end_group(self, group: Group, records: Sequence[Record]) -> None:
        super().end_group(group, records)
        self._note()

    def _note(self) -> None:
        passed_s = time.monotonic() - self._started_s
        self.estimates.append((passed_s, passed_s + self._left.estimate.expected_s))

    @property
    def taken_s(self) -> float:
        return self.estimates[-1][0]

    def find_ratio(self, share: float) -> float:
        """Of the last estimate before that share of the time was over, to what the run took."""
        known = [
            whole_s for passed_s, whole_s in self.estimates if passed_s <= share * self.taken_s
        ]
        return known[-1] / self.taken_s if known else self.estimates[0][1] / self.taken_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="SUITE")
    parser.add_argument("--loaded", action="store_true", help="keep all cores busy meanwhile")
    asked = parser.parse_args()
    ratios: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
    print(f"{'suite':12} {'groups':>6} {'took':>8}   estimated / took at " + ", ".join(MOMENTS))
    with keep_busy(os.cpu_count() or 1 if asked.loaded else 0):
        for suite in asked.suites:
            run = follow(suite)
            found = {moment: run.find_ratio(share) for moment, share in MOMENTS.items()}
            for moment, ratio in found.items():
                ratios[moment].append(ratio)
            shown = "  ".join(f"{ratio:5.2f}" for ratio in found.values())
            print(
                f"{suite:12} {len(run.estimates) - 1:6} {run.taken_s:7.1f}s   {shown}", flush=True
            )
    worst = {moment: max(map(measure_error, each)) for moment, each in ratios.items()}
    for moment, error in worst.items():
        print(f"worst at {moment:6} wrong by a factor of {error:.2f}   (reach: at most {REACH:g})")
    return 0 if max(worst.values()) <= REACH else 1


def measure_error(ratio: float) -> float:
    return math.exp(abs(math.log(ratio)))


def follow(suite: str) -> EstimateWatcher:
    watcher = EstimateWatcher()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.jsonl"
        session.run(session.Options(suite=suite, settings=QUICK, quick=True, out=out), watcher)
    return watcher


@contextmanager
def keep_busy(processes: int) -> Iterator[None]:
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(processes)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.terminate()
            process.join()


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    sys.exit(main())
