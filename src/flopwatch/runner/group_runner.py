"""The runner: order, budget, progress, resume. It never imports torch.

One group after the other goes to a worker; its messages become records, which are stored as soon
as the group is done. A worker that dies costs the variant that killed it: the others of the group
are measured again without it.

Ctrl-C: the first press is a wish, the second an order.

The wish is kept in mind until the current group is done. The order is only raised where the runner
waits for a worker: anywhere else (while records are stored, for example) it could lose what was
measured, and the run is about to stop anyway.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, Protocol

from flopwatch.devices import environment as machine
from flopwatch.errors import SuiteError, UsageError
from flopwatch.records.record import Cause, Record, Status
from flopwatch.records.store import Store
from flopwatch.runner.local_launcher import Hung, Launcher, Worker
from flopwatch.runner.rank_processes import Crew, Muster, RankLost, start_crew
from flopwatch.runner.record_builder import Draft, Harvest, Skip, explain_death, explain_hang
from flopwatch.runner.schedule import Description, Group, fit_budget, longest_s
from flopwatch.settings import PROBE_SHARE, Settings
from flopwatch.suites.catalog import SuiteFile


class Interrupts:
    """Where it `is_urgent`, the first press is an order already."""

    def __init__(self, *, is_urgent: bool = False) -> None:
        self.count = 0
        self._enough = 1 if is_urgent else 2
        self._waiting = False

    @contextmanager
    def watched(self, say: Callable[[str], None]) -> Iterator[None]:
        """Count Ctrl-C instead of raising it."""

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            self.count += 1
            if self.count < self._enough:
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
            if self.count >= self._enough:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False


class Watcher(Protocol):
    """Whoever shows a run's progress."""

    def begin(self, groups: Sequence[Group], settings: Settings) -> None: ...
    def begin_group(self, group: Group) -> None: ...
    def progress(self, progress: dict[str, Any]) -> None: ...
    def end_group(self, group: Group, records: Sequence[Record]) -> None: ...
    def say(self, sentence: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What all groups of a run share."""

    suite_file: SuiteFile
    launcher: Launcher
    muster: Muster
    settings: Settings
    environment: dict[str, Any]
    cache_bytes: int | None
    run: str
    interrupts: Interrupts = field(default_factory=Interrupts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a run stored, and whether the user cut it short."""

    records: list[Record]
    interrupted: bool


def new_run_id() -> str:
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + uuid.uuid4().hex[:6]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What of a suite is to be measured."""

    quick: bool
    preset: str | None
    chosen: Mapping[str, Sequence[str]]
    """Values in place of the suite's own, by axis."""
    baseline: str | None
    ranks: int | None
    """How many somebody else has started, where nobody has chosen how many to use."""


def describe(
    launcher: Launcher, suite_file: SuiteFile, asked: Asked, settings: Settings
) -> Description:
    """Ask a worker what the suite file declares, with chosen values in place of its own."""
    reply = _ask(
        launcher.start,
        {
            "kind": "describe",
            "suite_path": str(suite_file.path),
            **asdict(asked),
            "device": settings.device,
        },
        settings,
        f"{suite_file.path.name} cannot be loaded",
    )
    if reply.pop("event") == "refused":
        raise UsageError(reply["reason"])
    return Description(**reply)


def read_torch_environment(launcher: Launcher, settings: Settings) -> dict[str, Any]:
    """What only a process with torch can tell: its build, and the allocator in force."""
    request = {"kind": "environment", "settings": asdict(settings)}
    reply = _ask(launcher.start, request, settings, "the measuring process cannot describe itself")
    return {"torch": reply["torch"], "allocator": reply["allocator"]}


def measure_rates(
    launcher: Launcher, dtypes: Sequence[str], settings: Settings
) -> dict[str, float]:
    """FLOP/s of a product in each of the dtypes; none where that cannot be told: an estimate is no
    reason for a run to fail."""
    request = {"kind": "rates", "dtypes": dtypes, "settings": asdict(settings)}
    try:
        reply = _ask(launcher.start, request, settings, "the rate of products cannot be measured")
    except SuiteError:
        return {}
    rates: dict[str, float] = reply["rates"]
    return rates


def call(
    launcher: Launcher,
    function: str,
    arguments: Mapping[str, Any],
    settings: Settings,
    start: Callable[[dict[str, Any]], Worker | Crew] | None = None,
) -> Any:
    """What ``package.module:function`` returns in a worker, as plain data. `start` is for one that
    is not alone."""
    request = {
        "kind": "call",
        "function": function,
        "arguments": arguments,
        "settings": asdict(settings),
    }
    complaint = f"{function.partition(':')[2]} failed"
    reply = _ask(start or launcher.start, request, settings, complaint)
    if reply["event"] == "refused":
        raise UsageError(reply["reason"])
    return reply["value"]


def measure_groups(
    groups: Sequence[Group],
    context: Context,
    *,
    store: Store,
    watcher: Watcher,
    budget_s: float | None = None,
) -> Measured:
    """Measure all groups and store their records.

    The first Ctrl-C finishes the current group, the second stops at once.
    """
    stored: list[Record] = []
    started_s = time.monotonic()
    interrupts = context.interrupts
    watcher.begin(groups, context.settings)
    with interrupts.watched(watcher.say):
        for position, group in enumerate(groups):
            left_s = None if budget_s is None else budget_s - (time.monotonic() - started_s)
            settings = fit_budget(left_s, groups[position:], context.settings)
            # By a hair's breadth too little is enough: shares that were divided sum up to it.
            if left_s is not None and left_s < 0.99 * longest_s([group], settings):
                used_up = Skip("budget", "the run's budget was used up")
                records = skip(group, context, dict.fromkeys(group.variants, used_up))
            else:
                watcher.begin_group(group)
                records = measure_group(group, replace(context, settings=settings), watcher)
            for record in records:
                store.append(record)
                stored.append(record)
            watcher.end_group(group, records)
            if interrupts.count:
                break
    return Measured(records=stored, interrupted=bool(interrupts.count))


def measure_group(group: Group, context: Context, watcher: Watcher) -> list[Record]:
    """Records of all variants of the group, in the group's order."""
    records: dict[str, Record] = {}
    waiting = list(group.variants)
    while waiting:
        harvest = Harvest(tuple(waiting))
        ending = _run_worker(harvest, replace(group, variants=tuple(waiting)), context, watcher)
        finished = [variant for variant in waiting if variant not in ending.unfinished]
        for variant in finished:
            draft = harvest.drafts[variant]
            records[variant] = _make_record(harvest, draft, group, context, ending.interrupted)
        waiting = list(ending.unfinished)
    return [records[variant] for variant in group.variants]


def attempt(group: Group, context: Context, watcher: Watcher) -> list[Record]:
    """Try whether a group can run at all; the records of what failed."""
    harvest = Harvest(group.variants)
    limit_bytes = context.settings.memory_limit_bytes
    if limit_bytes is not None:
        spared = replace(context.settings, memory_limit_bytes=int(PROBE_SHARE * limit_bytes))
        context = replace(context, settings=spared)
    ending = _run_worker(harvest, group, context, watcher, is_probe=True)
    if ending.interrupted:
        raise KeyboardInterrupt
    failed = [draft for draft in harvest.drafts.values() if draft.status != "ok"]
    return [_make_record(harvest, draft, group, context) for draft in failed]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a worker ended."""

    unfinished: tuple[str, ...] = ()
    """Variants that were not at fault, but lost their worker."""
    interrupted: bool = False


def _start(group: Group, context: Context, *, is_probe: bool = False) -> Worker | Crew:
    request = {
        "kind": "group",
        "suite_path": str(context.suite_file.path),
        "params": dict(group.params),
        "variants": list(group.variants),
        "baseline": group.baseline,
        "settings": asdict(context.settings),
        "cache_bytes": context.cache_bytes,
        "probe": is_probe,
    }
    if group.ranks is None:
        return context.launcher.start(request)
    return start_crew(context.launcher, context.muster, request, group.ranks)


def _run_worker(
    harvest: Harvest, group: Group, context: Context, watcher: Watcher, *, is_probe: bool = False
) -> Ending:
    ending = _run_once(harvest, group, context, watcher, is_probe=is_probe)
    if harvest.is_port_taken:  # since it was chosen: the next try has another one
        harvest.start_over()
        ending = _run_once(harvest, group, context, watcher, is_probe=is_probe)
    return ending


def _run_once(
    harvest: Harvest, group: Group, context: Context, watcher: Watcher, *, is_probe: bool
) -> Ending:
    with closing(_start(group, context, is_probe=is_probe)) as worker:
        limit_s = context.settings.silence_limit_s
        try:
            for message in worker.events(limit_s, waiting=context.interrupts.raised):
                harvest.take(message)
                if message["event"] == "samples" and harvest.progress:
                    watcher.progress(harvest.progress)
                if message["event"] == "finished" and message["studies"]:
                    watcher.say(f"{group.label}: timed; studying {', '.join(message['studies'])}")
        except KeyboardInterrupt:
            for message in worker.terminate():
                harvest.take(message)
            return Ending(interrupted=True)
        except RankLost as lost:
            worker.kill()
            if not harvest.unfinished():  # all is measured
                return Ending()
            trouble = lost.trouble
            return _blame(harvest, worker, trouble.status, str(trouble), trouble.cause)
        except Hung:
            if not harvest.unfinished():  # all is measured; it only does not go home
                return Ending()
            worker.interrogate()
            reason = worker.explain_hang(limit_s)
            worker.kill()
            return _blame(harvest, worker, "timeout", reason)
        return _conclude(harvest, worker)


def _conclude(harvest: Harvest, worker: Worker | Crew) -> Ending:
    """What the end of a worker means for its variants."""
    if not harvest.unfinished():
        return Ending()
    if harvest.exhausted:
        return Ending(unfinished=tuple(draft.variant for draft in harvest.unfailed()))
    if harvest.broken is not None:
        for draft in harvest.unfinished():
            draft.fail(harvest.broken_status, harvest.broken)
        return Ending()
    assert worker.exit_code is not None
    status, reason = explain_death(
        worker.exit_code, worker.board.read().stage, worker.log_tail(), worker.find_shortage()
    )
    return _blame(harvest, worker, status, worker.title + reason)


def _blame(
    harvest: Harvest,
    worker: Worker | Crew,
    status: Status,
    reason: str,
    cause: Cause | None = None,
) -> Ending:
    """Fail the variant that was in work; if others are unfinished, all need another worker, since
    only times of one worker can be compared.

    If none was in work, it is something they share, and another worker would fare no better.
    """
    culprit = worker.board.read().variant_index
    if culprit is None:
        for draft in harvest.unfinished():
            draft.fail(status, reason, cause)
        return Ending()
    blamed = list(harvest.drafts.values())[culprit]
    if blamed.status == "ok":  # it may have given its reason itself
        blamed.fail(status, reason, cause)
    if not harvest.unfinished():
        return Ending()
    return Ending(unfinished=tuple(draft.variant for draft in harvest.unfailed()))


def skip(group: Group, context: Context, reasons: Mapping[str, Skip]) -> list[Record]:
    """Records of variants that are not tried, with their reasons by variant."""
    harvest = Harvest(group.variants)
    for variant, draft in harvest.drafts.items():
        draft.fail("skipped", reasons[variant].reason, reasons[variant].cause)
    return [_make_record(harvest, draft, group, context) for draft in harvest.drafts.values()]


def _make_record(
    harvest: Harvest, draft: Draft, group: Group, context: Context, interrupted: bool = False
) -> Record:
    return harvest.make_record(
        draft,
        group=group,
        run=context.run,
        settings=context.settings,
        environment={**context.environment, "load": machine.load()},
        interrupted=interrupted,
    )


def _ask(
    start: Callable[[dict[str, Any]], Worker | Crew],
    request: dict[str, Any],
    settings: Settings,
    complaint: str,
) -> dict[str, Any]:
    """The single reply of a worker to a question; anything else is a SuiteError."""
    with closing(start(request)) as worker:
        try:
            replies = list(worker.events(settings.silence_limit_s))
        except RankLost as lost:
            worker.kill()
            raise SuiteError(f"{complaint}: {lost}") from None
        except Hung:
            worker.interrogate()
            reason = explain_hang(settings.silence_limit_s, "loading", worker.log_tail())
            worker.kill()
            raise SuiteError(f"{complaint}: {reason}") from None
        except KeyboardInterrupt:
            worker.kill()
            raise
        if not replies:
            assert worker.exit_code is not None
            shortage = worker.find_shortage()
            _, reason = explain_death(worker.exit_code, "loading", worker.log_tail(), shortage)
            raise SuiteError(f"{complaint}: {reason}")
        if replies[0]["event"] == "broken":
            raise SuiteError(f"{complaint}: {replies[0]['reason']}")
        return replies[0]
