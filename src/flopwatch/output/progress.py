"""A run on stderr: what it would do, and its progress, as live lines on a terminal and plain lines
elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.console import Group as RichGroup
from rich.live import Live
from rich.text import Text

from flopwatch.devices.environment import LoadWatch
from flopwatch.output.background_load import warn_of_load
from flopwatch.output.units import (
    format_half_width,
    format_ratio,
    format_time,
    plural,
    printable,
)
from flopwatch.records.record import Record
from flopwatch.runner.durations import Duration, Estimate, expect_left_s, update
from flopwatch.runner.schedule import Group, format_filters
from flopwatch.settings import Settings
from flopwatch.suites.case import label
from flopwatch.worker.sampling import Progress as SamplingProgress

if TYPE_CHECKING:
    from flopwatch.runner.session import Preview

REFRESH_S = 0.5
"""Drawing costs processor time that the worker should have."""
LINE_EVERY_S = 30.0
"""Of a log, while one group is measured."""
LOAD_EVERY_S = 5.0
MOST_ESTIMATES = 8


class TimeLeft:
    """The estimate of a run, which every group corrects, and within a group its rounds."""

    def __init__(self, estimate: Estimate, now_s: Callable[[], float] = time.monotonic) -> None:
        self.estimate = estimate
        self._now_s = now_s
        self._current: Group | None = None
        self._started_s = now_s()
        self._progress: SamplingProgress | None = None
        """The latest of the current group; None: it is not sampled yet."""
        self._observed_s = 0.0

    def begin_group(self, group: Group) -> None:
        self._current, self._started_s = group, self._now_s()
        self._progress = None

    def observe(self, progress: SamplingProgress) -> None:
        if progress != self._progress:  # within a long round it is reported again and again
            self._progress, self._observed_s = progress, self._now_s()

    def end_group(self, group: Group, records: Sequence[Record]) -> None:
        taken_s = self._now_s() - self._started_s if group is self._current else 0.0
        sampling_s = min(self._progress.elapsed_s if self._progress else 0.0, taken_s)
        taken = Duration(overhead_s=taken_s - sampling_s, sampling_s=sampling_s)
        was_measured = any(record.status == "ok" for record in records)
        self.estimate = update(self.estimate, group, taken, was_measured=was_measured)
        self._current = self._progress = None

    @property
    def passed_s(self) -> float:
        """What has passed of the time that the estimate expects, the current group's."""
        if self._current is None:
            return 0.0
        expected = self.estimate.expect_group(self._current.id)
        now_s = self._now_s()
        running_s, since_s = now_s - self._started_s, now_s - self._observed_s
        return expected.total_s - expect_left_s(expected, running_s, self._progress, since_s)

    @property
    def left_s(self) -> float:
        return max(self.estimate.expected_s - self.passed_s, 0.0)

    def text(self) -> str:
        return f"{self.estimate.describe(self.passed_s)} left"


def describe_progress(progress: SamplingProgress, target_interval: float | None) -> str:
    if progress.warmup_rounds is None:
        return f"warming up, round {progress.rounds}"
    reached = format_half_width(progress.half_width) or "too few samples"
    aim = "a settled verdict" if target_interval is None else f"±{100 * target_interval:g} %"
    return f"{reached} (aim: {aim})"


class Load:
    """What other processes take of the cores, read now and then: that costs milliseconds."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._watch, self._now_s = LoadWatch(), now_s
        self._read_s = now_s()
        self.share: float | None = None

    def text(self) -> str:
        if self._now_s() - self._read_s >= LOAD_EVERY_S:
            self._read_s = self._now_s()
            self.share = self._watch.read_share()
        return "" if self.share is None else f"others use {100 * self.share:.0f} % of the cores"


class PlainWatcher:
    """One line a group, for logs and pipes, and one now and then while a group takes long. Quiet:
    only what is unexpected."""

    def __init__(
        self,
        console: Console,
        *,
        is_quiet: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._is_quiet, self._now_s = console, is_quiet, now_s
        self._done = self._total = 0
        self._group: Group | None = None
        self._shown_s = now_s()

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None:
        self._total = len(groups)
        self._target_interval = settings.target_interval
        self._left, self._load = TimeLeft(estimate, self._now_s), Load(self._now_s)
        self._same = {
            axis: value
            for axis, value in (groups[0].params.items() if len(groups) > 1 else ())
            if all(group.params.get(axis) == value for group in groups)
        }

    def begin_group(self, group: Group) -> None:
        self._group = group
        self._left.begin_group(group)

    def progress(self, progress: SamplingProgress, records: Mapping[str, Record]) -> None:
        self._left.observe(progress)
        if not self._is_quiet and self._is_time(LINE_EVERY_S):
            facts = [describe_progress(progress, self._target_interval), self._left.text()]
            self.say(f"{self._name()}: {', '.join(filter(None, [*facts, self._load.text()]))}")

    def end_group(self, group: Group, records: Sequence[Record]) -> None:
        self._group = group
        self._done += 1
        self._left.end_group(group, records)
        left = "" if self._done == self._total else f", {self._left.text()}"
        if not self._is_quiet:
            self.say(f"{self._name(self._done)}: {describe_records(records)}{left}")

    def confirm_cancel(self, num_jobs: int) -> bool:
        """Whether the user wants these jobs to end; nobody can be asked here."""
        return False

    def follow(self, sentence: str) -> None:
        """How far jobs are that others run."""
        if not self._is_quiet and self._is_time(LINE_EVERY_S):
            self.say(sentence)

    def remark(self, sentence: str) -> None:
        """What is as expected."""
        if not self._is_quiet:
            self.say(sentence)

    def say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        self._shown_s = self._now_s()

    def _name(self, number: int | None = None) -> str:
        """The current group, without what all groups have in common."""
        number = self._done + 1 if number is None else number
        params = self._group.params if self._group else {}
        own = {axis: value for axis, value in params.items() if axis not in self._same}
        return f"{number}/{self._total} {label(own)}".rstrip()

    def _is_time(self, every_s: float) -> bool:
        return self._now_s() - self._shown_s >= every_s

    def __enter__(self) -> PlainWatcher:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TerminalWatcher(PlainWatcher):
    """A few lines that are gone at the end: the current group, its variants so far, how exact they
    are, the time left, and the load of the machine."""

    def __init__(
        self,
        console: Console,
        *,
        is_quiet: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, is_quiet=is_quiet, now_s=now_s)
        # Drawn when told, by no thread of its own: that would take time from the measurement.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None:
        super().begin(groups, settings, estimate)
        self._draw("starting")

    def begin_group(self, group: Group) -> None:
        super().begin_group(group)
        self._draw("building and checking")

    def progress(self, progress: SamplingProgress, records: Mapping[str, Record]) -> None:
        self._left.observe(progress)
        if self._is_time(REFRESH_S):
            how_far = describe_progress(progress, self._target_interval)
            self._draw(how_far, list_estimates(progress, records))

    def confirm_cancel(self, num_jobs: int) -> bool:
        if not sys.stdin.isatty():
            return False
        self._live.stop()
        question = f"Cancel {plural(num_jobs, 'job')}, or leave them to Slurm? [cancel/LEAVE] "
        self._console.print(question, end="", highlight=False, markup=False)
        try:
            answer = input()
        except (KeyboardInterrupt, EOFError):
            answer = ""
        self._live.start()
        return answer.strip().lower() in ("c", "cancel")

    def follow(self, sentence: str) -> None:
        self._show([sentence])

    def _draw(self, how_far: str, estimates: Sequence[str] = ()) -> None:
        head = f"{self._name()}: {how_far}" if self._group else how_far
        foot = ", ".join(filter(None, [self._left.text(), self._load.text()]))
        self._show([head, *(f"  {line}" for line in estimates), f"  {foot}"])

    def _show(self, lines: Sequence[str]) -> None:
        self._shown_s = self._now_s()
        texts = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in lines]
        self._live.update(RichGroup(*texts), refresh=True)

    def __enter__(self) -> TerminalWatcher:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()


def list_estimates(progress: SamplingProgress, records: Mapping[str, Record]) -> list[str]:
    """A line a variant: its median so far, and how much faster than the baseline that is. No
    verdicts: those are for the end."""
    first = progress.warmup_rounds or 0
    middles_ns = {
        variant: median(totals[first:] or totals)
        for variant, record in records.items()
        if record.status == "ok" and (totals := _list_totals_ns(record))
    }
    base = next((records[variant].baseline for variant in middles_ns), "")
    is_warm = progress.warmup_rounds is not None  # before that, ratios mislead
    width = max(map(len, middles_ns), default=0)
    lines = []
    for variant, middle_ns in middles_ns.items():
        ratio = ""
        if is_warm and variant != base and base in middles_ns:
            ratio = f"{format_ratio(middles_ns[base] / middle_ns):>8}"
        lines.append(f"{variant:{width}}  {format_time(middle_ns):>8}{ratio}")
    left = len(lines) - MOST_ESTIMATES
    return [*lines[:MOST_ESTIMATES], *([f"and {left} more"] if left > 0 else [])]


def _list_totals_ns(record: Record) -> list[float]:
    return [sum(phases) for phases in zip(*record.samples_ns.values(), strict=False)]


def describe_records(records: Sequence[Record]) -> str:
    """
    >>> describe_records([])
    'nothing'
    """
    counts: dict[str, int] = {}
    for record in records:
        counts[record.status] = counts.get(record.status, 0) + 1
    rounds = [len(r.rounds) - r.warmup_samples for r in records if r.status == "ok"]
    parts = [f"{count} {status}" for status, count in counts.items()]
    text = ", ".join(parts) or "nothing"
    return f"{text} ({plural(max(rounds), 'round')})" if rounds else text


def make_watcher(console: Console, *, is_quiet: bool = False) -> PlainWatcher:
    """Quiet: on a terminal progress is still shown, since it leaves no trace."""
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalWatcher(console, is_quiet=is_quiet)
    return PlainWatcher(console, is_quiet=is_quiet)


def list_groups(preview: Preview) -> list[str]:
    lines = []
    for group in preview.groups:
        lines.append(f"{group.label}: {', '.join(group.variants)}")
        alike: dict[str, list[str]] = {}
        for variant, skip in preview.misfits.get(group.id, {}).items():
            alike.setdefault(skip.message, []).append(variant)
        lines += [f"  {', '.join(who)}: skipped, {reason}" for reason, who in alike.items()]
    return lines


def list_remarks(preview: Preview) -> list[str]:
    """How long it would take, and what else there is to measure."""
    estimate = preview.estimate
    remarks = [
        f"{estimate}; less what the results file already answers",
        *warn_of_load(estimate.background_share),
    ]
    if preview.on_request:
        remarks.append(f"on request: {format_filters(preview.on_request)}")
    if preview.presets:
        remarks.append(f"other grids: --grid {', '.join(preview.presets)}")
    return remarks


def preview_as_dict(preview: Preview) -> dict[str, Any]:
    """For ``--json``: plain numbers with units in their names."""
    return {
        "cases": [
            {
                "params": group.params,
                "variant": variant,
                "memory_bytes": group.memory.get(variant, {}),
                "misfit": None if skip is None else skip.message,
            }
            for group in preview.groups
            for variant in group.variants
            for skip in [preview.misfits.get(group.id, {}).get(variant)]
        ],
        "expected_s": preview.estimate.expected_s,
        "shortest_s": preview.estimate.range_s[0],
        "longest_s": preview.estimate.range_s[1],
        "flops_per_s": preview.estimate.rates,
        "on_request": preview.on_request,
        "grids": preview.presets,
    }
