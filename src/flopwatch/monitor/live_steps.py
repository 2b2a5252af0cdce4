"""The latest steps as one line on stderr: in a terminal or a notebook it is written anew, in a log
there is another every minute. At the end, one line says how the run went."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from flopwatch.monitor.base import RunFacts, StepFacts
from flopwatch.monitor.step_metrics import Means
from flopwatch.output.live_line import LiveLine, open_live_line
from flopwatch.output.units import format_count, format_time, plural, printable
from flopwatch.records.monitored import End

LOG_EVERY_S = 60.0
LEAST_SHARE = 0.01
"""Of a step's time: parts below it are not named."""


class LiveSteps:
    def __init__(
        self,
        *,
        line: LiveLine | None = None,
        log: TextIO | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            line: That is written anew; None: one where there is somebody to see it.
            log: For plain lines; None: stderr.
        """
        self._line = line or open_live_line()
        self._is_log = type(self._line) is LiveLine  # which shows nothing
        self._log = log
        self._now_s = now_s
        self._logged_s: float | None = None
        self._run: RunFacts | None = None
        self._first, self._usual = Means(), Means()

    def start(self, run: RunFacts) -> None:
        self._run = run

    def steps(self, steps: Sequence[StepFacts]) -> None:
        for step in steps:
            (self._first if step.is_first else self._usual).add(step)
        text = f"step {steps[-1].number:,}: {describe_means(Means(steps))}"
        if not self._is_log:
            self._line.show(text, force=True)
        elif self._usual.steps and self._is_due():
            self._write(text)

    def close(self, end: End) -> None:
        with self._line:
            pass  # whose end erases it
        if self._run is not None:
            self._write(self._summarise(self._run))

    def _is_due(self) -> bool:
        now_s = self._now_s()
        if self._logged_s is not None and now_s - self._logged_s < LOG_EVERY_S:
            return False
        self._logged_s = now_s
        return True

    def _summarise(self, run: RunFacts) -> str:
        means = self._usual if self._usual.steps else self._first
        is_apart = self._usual.steps and self._first.steps
        after = f" after the first {self._first.steps}" if is_apart else ""
        missing = f"; no MFU: {run.missing}" if run.missing else ""
        more = "" if run.out is None else f"; more: flopwatch show {run.out}"
        return f"{plural(means.steps, 'step')}{after}: {describe_means(means)}{missing}{more}"

    def _write(self, text: str) -> None:
        log = self._log or sys.stderr
        if log is not None:  # as it is of a program without a console
            log.write(f"flopwatch: {printable(text)}\n")
            log.flush()


def describe_means(means: Means) -> str:
    """What matters first: a terminal may cut the rest."""
    tokens_per_s, mfu = means.find("tokens_per_s"), means.find("mfu")
    facts = [f"{format_time(means.time_s / means.steps * 1e9)} a step"]
    if mfu is not None:
        facts.insert(0, f"MFU {100 * mfu:.1f} %")
    if tokens_per_s is not None:
        facts.insert(0, f"{format_count(tokens_per_s)} tokens/s")
    shares = sorted(((time_s / means.time_s, part) for part, time_s in means.part_s.items()))
    parts = [f"{part} {100 * share:.0f} %" for share, part in shares[::-1] if share >= LEAST_SHARE]
    return ", ".join(facts) + (f" ({', '.join(parts)})" if len(parts) > 1 else "")
