"""Measuring groups: order, budget, failures. It never imports torch.

One group after the other goes to a worker; its messages become records, which are stored as soon
as the group is done. A worker that dies costs the variant that killed it: the rest of the group is
measured again without it. Where the server dies that has started the worker, most likely no variant
is at fault: then the group is tried once more. So it is where anything fails in a process that has
measured other groups before: what fails in a fresh one is a row.

The first Ctrl-C ends the run after the current group, the second at once. The second is only raised
where the runner waits for a worker: anywhere else (while records are stored, for example) it could
lose what was measured, and the run is about to stop anyway.
"""

from __future__ import annotations

import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Protocol

from flopwatch.devices import environment as machine
from flopwatch.errors import RefusedRecord
from flopwatch.records.record import Record
from flopwatch.records.store import Store
from flopwatch.runner.durations import Estimate
from flopwatch.runner.host import add_columns
from flopwatch.runner.local_launcher import Launcher, Worker
from flopwatch.runner.rank_processes import RankLauncher, RankLost, RankWorkers, start_ranks
from flopwatch.runner.record_builder import RecordBuilder
from flopwatch.runner.schedule import Group, fit_budget, longest_s
from flopwatch.runner.worker_processes import Hung
from flopwatch.settings import PROBE_SHARE, Settings
from flopwatch.suites.catalog import SuiteFile
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import BrokenMessage, Finished, MeasureGroup, Report, Samples
from flopwatch.worker.sampling import Progress
from flopwatch.worker.turns import Side


class Interrupts:
    """Where it `is_urgent`, the first Ctrl-C already stops at once."""

    def __init__(self, *, is_urgent: bool = False) -> None:
        self.count = 0
        self.enough = 1 if is_urgent else 2
        self._waiting = False

    @contextmanager
    def watched(self, say: Callable[[str], None]) -> Iterator[None]:
        """Count Ctrl-C instead of raising it."""

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            self.count += 1
            if self.count < self.enough:
                say("finishing the current group; press Ctrl-C again to stop at once")
            elif self._waiting:
                raise KeyboardInterrupt

        previous = signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Here the second Ctrl-C is raised, even if it came before."""
        self._waiting = True
        try:
            if self.count >= self.enough:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False


class Watcher(Protocol):
    """Shows a run's progress."""

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None: ...
    def begin_group(self, group: Group) -> None: ...
    def progress(self, progress: Progress, records: Mapping[str, Record]) -> None:
        """The records of the group so far, by variant."""

    def end_group(self, group: Group, records: Sequence[Record]) -> None: ...
    def remark(self, sentence: str) -> None:
        """What is as expected."""

    def say(self, sentence: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What all groups of a run share."""

    suite_file: SuiteFile
    launcher: Launcher
    rank_launcher: RankLauncher
    settings: Settings
    environment: dict[str, Any]
    cache_bytes: int | None
    run: str
    interrupts: Interrupts = field(default_factory=Interrupts)
    paths: Sequence[str] = ()
    """Folders that workers import from first: those of a revision."""
    is_alike: Callable[[Record], bool] | None = None
    """Whether a record of an earlier run was taken as this run would; None: under the same
    conditions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnPlace:
    """Of a worker that takes turns with another one."""

    side: Side
    link: socket.socket


def new_run_id() -> str:
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + uuid.uuid4().hex[:6]


def measure_groups(
    groups: Sequence[Group],
    context: Context,
    *,
    store: Store,
    watcher: Watcher,
    estimate: Estimate,
    budget_s: float | None = None,
) -> list[Record]:
    """Measure all groups and store their records, unless Ctrl-C ends the run. The estimate is for
    the watcher."""
    stored: list[Record] = []
    started_s = time.monotonic()
    interrupts = context.interrupts
    watcher.begin(groups, context.settings, estimate)
    with interrupts.watched(watcher.say):
        for position, group in enumerate(groups):
            left_s = None if budget_s is None else budget_s - (time.monotonic() - started_s)
            settings = fit_budget(left_s, groups[position:], context.settings)
            # Shares that were divided sum up to the budget only approximately.
            if left_s is not None and left_s < 0.99 * longest_s([group], settings):
                used_up = Failure("skipped", "the run's budget was used up", "budget")
                records = skip(group, context, dict.fromkeys(group.variants, used_up))
            else:
                watcher.begin_group(group)
                records = measure_group(group, replace(context, settings=settings), watcher)
            records = [append_record(store, record) for record in records]
            stored += records
            watcher.end_group(group, records)
            if interrupts.count:
                break
    return stored


IDENTITY = (
    *("case_id", "group_id", "run_id", "suite", "variant", "baseline", "params"),
    *("kind", "parts_of", "layout", "settings", "environment", "sources", "measured_at"),
)
"""Fields of a record that its worker has not filled in."""


def append_record(store: Store, record: Record) -> Record:
    """The record as it is stored: without what the worker has reported, where that is nonsense or
    too much for any reader."""
    try:
        store.append(record)
    except RefusedRecord as error:
        identity = {name: getattr(record, name) for name in IDENTITY}
        record = Record(**identity, status="crash", message=f"broken report: {error.reason}")
        store.append(record)
    return record


def measure_group(group: Group, context: Context, watcher: Watcher) -> list[Record]:
    """Records of all variants of the group, in the group's order."""
    records: dict[str, Record] = {}
    waiting = group.variants
    while waiting:
        records |= measure_once(replace(group, variants=waiting), context, watcher)
        waiting = tuple(variant for variant in waiting if variant not in records)
    measured = [records[variant] for variant in group.variants]
    if not group.columns:
        return measured
    return add_columns(
        context.launcher,
        context.suite_file.path,
        measured,
        context.settings,
        context.interrupts.raised,
    )


def measure_once(
    group: Group, context: Context, watcher: Watcher, place: TurnPlace | None = None
) -> dict[str, Record]:
    """In one worker: records by variant, without those that were not at fault, but have lost their
    worker."""
    builder, ending = _run_worker(group, context, watcher, place=place)
    environment = _read_environment(context)
    return {
        variant: builder.finish(variant, environment, interrupted=ending.interrupted)
        for variant in group.variants
        if variant not in ending.unfinished
    }


def attempt(group: Group, context: Context, watcher: Watcher) -> list[Record]:
    """Try whether a group can run at all; the records of what failed."""
    limit_bytes = context.settings.memory_limit_bytes
    if limit_bytes is not None:
        spared = replace(context.settings, memory_limit_bytes=int(PROBE_SHARE * limit_bytes))
        context = replace(context, settings=spared)
    builder, ending = _run_worker(group, context, watcher, is_probe=True)
    if ending.interrupted:
        raise KeyboardInterrupt
    ok, environment = builder.list_ok(), _read_environment(context)
    return [builder.finish(v, environment) for v in group.variants if v not in ok]


def skip(group: Group, context: Context, reasons: Mapping[str, Failure]) -> list[Record]:
    """Records of variants that are not tried, with their reasons by variant."""
    builder = _make_builder(group, context)
    for variant, why in reasons.items():
        builder.fail(variant, why)
    environment = _read_environment(context)
    return [builder.finish(variant, environment) for variant in group.variants]


def _make_builder(group: Group, context: Context) -> RecordBuilder:
    return RecordBuilder(group, run=context.run, settings=context.settings)


def _read_environment(context: Context) -> dict[str, Any]:
    return {**context.environment, "load": machine.load()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a worker ended."""

    unfinished: tuple[str, ...] = ()
    """Variants that were not at fault, but lost their worker."""
    interrupted: bool = False
    lost_server: str | None = None
    """What became of the server that started the worker, where that has cut variants short."""
    was_reused: bool = False
    """Whether its process had measured other groups before."""


def _run_worker(
    group: Group,
    context: Context,
    watcher: Watcher,
    *,
    is_probe: bool = False,
    place: TurnPlace | None = None,
) -> tuple[RecordBuilder, Ending]:
    builder = _make_builder(group, context)
    ending = _run_once(builder, group, context, watcher, is_probe=is_probe, place=place)
    if ending.lost_server is not None:
        watcher.say(f"{group.label}: {ending.lost_server}; trying once more")
    # Since the port was chosen, another program has taken it; the next try has another one.
    is_port_taken = builder.broken is not None and builder.broken.is_port_taken
    is_doubtful = ending.was_reused and builder.has_failures and not ending.interrupted
    if is_doubtful:
        watcher.remark(f"{group.label}: failed after other groups; trying it in a new process")
    if is_port_taken or is_doubtful or ending.lost_server is not None:
        builder, group = _make_builder(group, context), replace(group, fresh=True)
        ending = _run_once(builder, group, context, watcher, is_probe=is_probe)
    return builder, ending


def _start(
    group: Group, context: Context, *, is_probe: bool, place: TurnPlace | None
) -> Worker | RankWorkers:
    request = MeasureGroup(
        suite_path=str(context.suite_file.path),
        paths=list(context.paths),
        params=dict(group.params),
        variants=list(group.variants),
        baseline=group.baseline,
        settings=context.settings,
        cache_bytes=context.cache_bytes,
        is_probe=is_probe,
        fresh=group.fresh,
        side=None if place is None else place.side,
    )
    if place is not None:
        try:
            return context.launcher.start(request, place.link)
        finally:
            place.link.close()  # so that the peer sees the end of this worker
    if group.ranks is None:
        return context.launcher.start(request)
    return start_ranks(context.launcher, context.rank_launcher, request, group.ranks)


def _run_once(
    builder: RecordBuilder,
    group: Group,
    context: Context,
    watcher: Watcher,
    *,
    is_probe: bool,
    place: TurnPlace | None = None,
) -> Ending:
    interrupts = context.interrupts
    try:
        with interrupts.raised():
            started = _start(group, context, is_probe=is_probe, place=place)
    except KeyboardInterrupt:
        return Ending(interrupted=True)
    with closing(started) as worker:
        ending = _follow(builder, group, context, watcher, worker)
        return replace(ending, was_reused=worker.is_reused)


def _follow(
    builder: RecordBuilder,
    group: Group,
    context: Context,
    watcher: Watcher,
    worker: Worker | RankWorkers,
) -> Ending:
    """Take a worker's reports until it ends."""
    limit_s, waiting = context.settings.silence_limit_s, context.interrupts.raised
    suspect = None
    try:
        for report in worker.reports(limit_s, waiting=waiting):
            builder.take(report)
            _show(report, group, watcher, builder.records)
    except KeyboardInterrupt:
        with suppress(BrokenMessage):
            for report in worker.terminate():
                builder.take(report)
        return Ending(interrupted=True)
    except RankLost as lost:
        failure = lost.failure
    except BrokenMessage as error:
        # Whatever writes there, the worker cannot be believed any more. It may have gone on to
        # another variant meanwhile, but has reported none after the one that is to blame.
        suspect = builder.in_building
        failure = Failure("crash", f"broken message during {worker.board.read().stage}: {error}")
    except Hung:
        if not builder.list_unfinished():  # all is measured; only the process does not end
            return Ending()
        failure = worker.explain_hang()
    else:
        return _conclude(builder, worker)
    worker.kill()
    return _blame(builder, worker, failure, suspect)


def _show(report: Report, group: Group, watcher: Watcher, records: Mapping[str, Record]) -> None:
    match report:
        case Samples(progress=progress) if progress is not None:
            watcher.progress(progress, records)
        case Finished(curves=curves) if curves:
            watcher.remark(f"{group.label}: timed; taking the curves of {', '.join(curves)}")


def _conclude(builder: RecordBuilder, worker: Worker | RankWorkers) -> Ending:
    """What the end of a worker means for its variants."""
    if not builder.list_unfinished():
        return Ending()
    if builder.needs_restart:
        return Ending(unfinished=tuple(builder.list_ok()))
    if builder.broken is not None:
        for variant in builder.list_unfinished():
            builder.fail(variant, builder.broken.failure)
        return Ending()
    return _blame(builder, worker, worker.explain_death())


def _blame(
    builder: RecordBuilder,
    worker: Worker | RankWorkers,
    failure: Failure,
    suspect: str | None = None,
) -> Ending:
    """Fail the suspect, or else the variant that was in work; if any other is unfinished, all need
    another worker, since only times of one worker can be compared.

    If none was in work, it is something they share, and another worker would fail as well.
    """
    if not builder.list_unfinished():  # all is measured
        return Ending()
    lost_server = failure.message if worker.has_lost_server else None
    position = worker.board.read().variant_index
    if suspect is None and (position is None or position >= len(builder.records)):
        for variant in builder.list_unfinished():
            builder.fail(variant, failure)
        return Ending(lost_server=lost_server)
    blamed = suspect or list(builder.records)[position or 0]
    if builder.records[blamed].status == "ok":  # it may have reported its reason itself
        builder.fail(blamed, failure)
    unfinished = builder.list_ok() if builder.list_unfinished() else []
    return Ending(unfinished=tuple(unfinished), lost_server=lost_server)
