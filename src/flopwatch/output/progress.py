"""A run on stderr: what it would do, and its progress, as a live line on a terminal and plain lines
elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flopwatch.output.background_load import warn_of_load
from flopwatch.output.units import format_half_width, plural
from flopwatch.records.record import Record
from flopwatch.runner.durations import Estimate, update
from flopwatch.runner.schedule import Group, format_filters
from flopwatch.settings import Settings
from flopwatch.worker.sampling import Progress as SamplingProgress

if TYPE_CHECKING:
    from flopwatch.runner.session import Preview

REFRESH_S = 0.5
"""Drawing costs processor time that the worker should have."""
OVERTIME = 0.2
"""Of the time that a group has taken so far: what it is expected to take at the least."""


class TimeLeft:
    """The estimate of a run, which every group corrects."""

    def __init__(self, estimate: Estimate, now_s: Callable[[], float] = time.monotonic) -> None:
        self.estimate = estimate
        self._now_s = now_s
        self._current: Group | None = None
        self._started_s = now_s()
        self._sampling_end_s: float | None = None
        """When the current group's budget will be spent; None: it is not sampled yet."""

    def begin_group(self, group: Group) -> None:
        self._current, self._started_s = group, self._now_s()
        self._sampling_end_s = None

    def observe(self, progress: SamplingProgress) -> None:
        self._sampling_end_s = self._now_s() + progress.budget_s - progress.elapsed_s

    def end_group(self, group: Group, records: Sequence[Record]) -> None:
        taken_s = self._now_s() - self._started_s if group is self._current else 0.0
        was_measured = any(record.status == "ok" for record in records)
        self.estimate = update(self.estimate, group, taken_s, was_measured=was_measured)
        self._current = None

    def text(self) -> str:
        passed_s = 0.0
        if self._current is not None:
            now_s = self._now_s()
            running_s = now_s - self._started_s
            expected_s = self.estimate.expect_group_s(self._current.id)
            left_s = max(expected_s - running_s, OVERTIME * running_s)
            if self._sampling_end_s is not None and self._sampling_end_s > now_s:
                left_s = min(left_s, self._sampling_end_s - now_s)
            passed_s = expected_s - left_s
        return f"{self.estimate.describe(passed_s)} left"


def describe_progress(progress: SamplingProgress, target_interval: float | None) -> str:
    if progress.warmup_rounds is None:
        return f"warming up, round {progress.rounds}"
    reached = format_half_width(progress.half_width) or "too few samples"
    aim = "a settled verdict" if target_interval is None else f"±{100 * target_interval:g} %"
    return f"{reached} (aim: {aim})"


class PlainWatcher:
    """One line a group, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._done = self._total = 0

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None:
        self._total = len(groups)
        self._left = TimeLeft(estimate)

    def begin_group(self, group: Group) -> None:
        self._left.begin_group(group)

    def progress(self, progress: SamplingProgress) -> None:
        self._left.observe(progress)

    def end_group(self, group: Group, records: Sequence[Record]) -> None:
        self._done += 1
        self._left.end_group(group, records)
        left = "" if self._done == self._total else f", {self._left.text()}"
        self.say(f"{self._done}/{self._total} {group.label}: {describe_records(records)}{left}")

    def say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> PlainWatcher:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TerminalWatcher(PlainWatcher):
    """A bar with the current group, its precision so far and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bar = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,  # no drawing thread during the measurement
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._group = ""
        self._drawn_s = 0.0

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None:
        super().begin(groups, settings, estimate)
        self._target_interval = settings.target_interval
        self._bar.update(self._task, total=len(groups))
        self._draw("starting", force=True)

    def begin_group(self, group: Group) -> None:
        super().begin_group(group)
        self._group = group.label
        self._draw("building and checking", force=True)

    def progress(self, progress: SamplingProgress) -> None:
        super().progress(progress)
        self._draw(describe_progress(progress, self._target_interval))

    def end_group(self, group: Group, records: Sequence[Record]) -> None:
        self._bar.advance(self._task)
        super().end_group(group, records)

    def _draw(self, text: str, force: bool = False) -> None:
        now_s = time.monotonic()
        if force or now_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = now_s
            description = f"{self._group}  {text}  {self._left.text()}"
            self._bar.update(self._task, description=description, refresh=True)

    def __enter__(self) -> TerminalWatcher:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


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


def make_watcher(console: Console) -> PlainWatcher:
    return TerminalWatcher(console) if console.is_terminal else PlainWatcher(console)


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
