"""How good are estimates of a run's duration? Before it starts, at a quarter, and at half of it.

Runs quick grids of the built-in suites, each twice: the first time without earlier records, the
second time with those of the first (--once: not). At the start the whole time from the first group
on is compared with what it took; at a quarter and at half of it, what is left with what was left.
With --loaded, a neighbour takes a core at random times meanwhile.

    python benchmarks/durations.py                        about five minutes on a quiet machine
    python benchmarks/durations.py --loaded
    python benchmarks/durations.py activations dyad:level=layer          with a filter
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from verdict_tools.neighbour import keep_condition

from flopwatch.output.progress import PlainWatcher
from flopwatch.records.record import Record
from flopwatch.runner import session
from flopwatch.runner.durations import Estimate
from flopwatch.runner.schedule import Group
from flopwatch.settings import QUICK, Settings

SUITES = (
    *("activations", "attention", "dyad:level=layer", "switchback:level=layer"),
    *("steps", "training"),
)
EVERY_S = 0.2
MOMENTS = {"start": 0.0, "25 %": 0.25, "50 %": 0.5}
REACH = 1.5


class EstimateWatcher(PlainWatcher):
    """Notes now and then how much is expected to be left."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.estimates: list[tuple[float, float]] = []
        """Seconds that have passed, and that are expected to be left."""
        self.taken_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._note_often)

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None:
        super().begin(groups, settings, estimate)
        self.groups = len(groups)
        self._started_s = time.monotonic()
        self.estimates.append((0.0, estimate.expected_s))
        self._thread.start()

    def end_group(self, group: Group, records: Sequence[Record]) -> None:
        super().end_group(group, records)
        self.taken_s = time.monotonic() - self._started_s

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _note_often(self) -> None:
        while not self._is_over.wait(EVERY_S):
            passed_s = time.monotonic() - self._started_s
            with contextlib.suppress(KeyError):  # between two groups
                self.estimates.append((passed_s, self._left.left_s))

    def find_ratio(self, share: float) -> float:
        """Of what was expected to be left after that share of the time, to what was left."""
        passed_s, left_s = [e for e in self.estimates if e[0] <= share * self.taken_s][-1]
        return left_s / (self.taken_s - passed_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="SUITE[:FILTER]")
    parser.add_argument("--loaded", action="store_true", help="with a neighbour meanwhile")
    parser.add_argument("--once", action="store_true", help="without a second run")
    asked = parser.parse_args()
    ratios: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    print(
        f"{'suite':24} {'run':>3} {'groups':>6} {'took':>8}   estimated / true at {list(MOMENTS)}"
    )
    with keep_condition("loaded" if asked.loaded else "quiet", 0):
        for suite in asked.suites:
            with tempfile.TemporaryDirectory() as folder:
                for number in (1,) if asked.once else (1, 2):
                    run = follow(suite, Path(folder) / "results.jsonl")
                    found = {moment: run.find_ratio(share) for moment, share in MOMENTS.items()}
                    for moment, ratio in found.items():
                        ratios[moment].append(ratio)
                    shown = "  ".join(f"{ratio:5.2f}" for ratio in found.values())
                    print(
                        f"{suite:24} {number:3} {run.groups:6} {run.taken_s:7.1f}s   {shown}",
                        f"  load average {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
    for moment, each in ratios.items():
        errors = sorted(map(measure_error, each))
        within = sum(error <= REACH for error in errors)
        print(
            f"at {moment:6} {within} of {len(errors)} within {REACH:g}; wrong by a factor of "
            f"{errors[len(errors) // 2]:.2f} (median), {errors[-1]:.2f} (worst)"
        )
    return 0 if all(measure_error(r) <= REACH for each in ratios.values() for r in each) else 1


def measure_error(ratio: float) -> float:
    return math.exp(abs(math.log(max(ratio, 1e-3))))


def follow(suite: str, out: Path) -> EstimateWatcher:
    watcher = EstimateWatcher()
    name, _, chosen = suite.partition(":")
    options = session.Options(
        suite=name,
        settings=QUICK,
        quick=True,
        out=out,
        rerun=True,
        filters=(chosen,) if chosen else (),
    )
    try:
        session.run(options, watcher)
    finally:
        watcher.end()
    return watcher


if __name__ == "__main__":
    sys.exit(main())
