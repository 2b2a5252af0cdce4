"""Two revisions of a project, measured in turns until it is known which is faster. No torch.

A group is measured in *visits*. A visit is a pair of new worker processes, one with the code of
each revision, that take turns round by round (`worker.turns`), for about a second a case. It gives
one ratio for every case. New processes, because where tensors and code lie in memory stays as it is
while a process lives, and makes identical code differ by some percent.

After 4 visits, and then after half as many again each time, all ratios are looked at. Measuring the
group ends when every verdict is clear, or its budget is spent. Looking several times gives chance
several chances; so look number n may be wrong with 1 % / (n (n + 1)), which is 1 % over all looks,
however many there are (alpha spending).

A case that fails is a row of its side, and the others go on without it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flopwatch.analysis.sequential import is_clear
from flopwatch.analysis.verdicts import Judgement, compare_runs
from flopwatch.devices import environment as machine
from flopwatch.devices import system_files
from flopwatch.errors import SuiteError, UsageError
from flopwatch.lazy import require
from flopwatch.output.units import plural
from flopwatch.records.record import Record
from flopwatch.records.store import Store
from flopwatch.runner import group_runner
from flopwatch.runner.durations import START_S, Duration, Estimate
from flopwatch.runner.group_runner import Context, Interrupts, TurnPlace, Watcher, append_record
from flopwatch.runner.host import describe, prepare_host
from flopwatch.runner.rank_processes import LocalRanks
from flopwatch.runner.revisions import Checkouts, Revision, build, check_out, list_import_paths
from flopwatch.runner.schedule import Group, make_groups, parse_filters
from flopwatch.settings import Device, Settings
from flopwatch.suites.catalog import SuiteFile, find_suite
from flopwatch.worker.messages import Describe
from flopwatch.worker.sampling import Progress

FIRST_VISITS = 4
GROWTH = 1.5
"""Of the number of visits, from one look to the next."""
FALSE_SHARE = 0.01
"""Of identical cases that may be called different, over all looks together."""
VISIT_S = 1.0
"""That a case gets in a visit, on each side, warm-up included."""
VISIT_ROUNDS = 4
"""Measured in a visit all the same, where a round takes longer."""
CASE_BUDGET_S = 30.0
SIDES = ("base", "head")
BRIEF_SPINNING = {"GOMP_SPINCOUNT": "10000"}
"""Threads of OpenMP that wait for work spin for some milliseconds, and take a core from the other
side, or on a busy machine from the very thread that they wait for. So they may for 0.2 ms only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the user asked for. None leaves the choice to flopwatch."""

    base: str
    head: str | None
    """None: the work tree as it is."""
    suite: Path
    settings: Settings
    threshold: float
    repository: Path
    out: Path
    """The folder for both sides' results."""
    build: str | None = None
    paths: Sequence[str] = ()
    filters: Sequence[str] = ()
    chosen: Sequence[str] = ()
    quick: bool = False
    device: Device | None = None
    threads: int | None = None
    memory_limit_bytes: int | None = None
    case_budget_s: float = CASE_BUDGET_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    base: Revision
    head: Revision
    judgement: Judgement
    visits: Mapping[str, int]
    """By group."""
    remarks: Sequence[str]
    """What a reader should know before the verdicts."""
    folder: Path
    interrupted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One revision, ready to be measured."""

    revision: Revision
    context: Context
    groups: Mapping[str, Group]
    """By id."""
    store: Store


def run(options: Options, watcher: Watcher) -> Report:
    require("torch")  # before anything is checked out and built
    machine.load()  # what is read later is the load from now on
    with (
        check_out(options.base, options.head, options.repository) as checkouts,
        ExitStack() as stack,
    ):
        for revision in (checkouts.base, checkouts.head):
            if options.build is not None:
                watcher.say(f"building {revision.label}")
                build(revision, options.build)
        interrupts = Interrupts()
        suites, remarks = find_suites(options.suite, checkouts)
        sides = [
            stack.enter_context(_open_side(options, revision, suite, name, interrupts))
            for revision, suite, name in zip(
                (checkouts.base, checkouts.head), suites, SIDES, strict=True
            )
        ]
        groups = _match_groups(sides)
        watcher.begin(groups, options.settings, _estimate(groups))
        visits: dict[str, int] = {}
        records: tuple[list[Record], list[Record]] = ([], [])
        with interrupts.watched(watcher.say):
            for group in groups:
                watcher.begin_group(group)
                found = _Comparison(group, sides, options, watcher).measure(interrupts)
                visits[group.id] = found.visits
                for kept, new in zip(records, found.records, strict=True):
                    kept.extend(new)
                watcher.end_group(group, found.records[1])
                if interrupts.count:
                    break
        return Report(
            base=checkouts.base,
            head=checkouts.head,
            judgement=compare_runs(*records, threshold=options.threshold),
            visits=visits,
            remarks=[*remarks, *_check_sources(*records, checkouts)],
            folder=options.out,
            interrupted=bool(interrupts.count),
        )


def find_suites(path: Path, checkouts: Checkouts) -> tuple[list[SuiteFile], list[str]]:
    """The suite's file in each revision, and what there is to say about them. Where the base does
    not have it yet, the head's is used for both."""
    base, head = checkouts.base, checkouts.head
    name = os.path.relpath(path.resolve(), find_repository(path))
    if not (head.folder / name).is_file():
        raise SuiteError(f"{head.label} has no suite file {name}; name one that it has")
    suites = [find_suite(str(one.folder / name)) for one in (base, head)
              if (one.folder / name).is_file()]  # fmt: skip
    if len(suites) == 1:
        return [*suites, *suites], [f"{base.label} has no {name}: both run that of {head.label}"]
    texts = [suite.path.read_bytes() for suite in suites]
    if texts[0] != texts[1]:
        return suites, [f"{name} differs between the revisions; each runs its own"]
    return suites, []


def find_repository(path: Path) -> Path:
    """The folder that a suite's path is relative to in every revision."""
    for parent in path.resolve().parents:
        if (parent / ".git").exists():
            return parent
    raise SuiteError(f"{path} is in no git repository; name a suite file of the project")


@contextmanager
def _open_side(
    options: Options, revision: Revision, suite: SuiteFile, name: str, interrupts: Interrupts
) -> Iterator[Side]:
    host = prepare_host(
        options.settings,
        project=revision.folder,
        device=options.device,
        threads=options.threads,
        memory_limit_bytes=options.memory_limit_bytes,
    )
    # Both sides are in memory at the same time.
    limit_bytes = (host.settings.memory_limit_bytes or 0) // len(SIDES)
    settings = replace(
        host.settings,
        memory_limit_bytes=limit_bytes or None,
        budget_s=len(SIDES) * VISIT_S,
        min_rounds=VISIT_ROUNDS,
    )
    paths = list_import_paths(revision, options.paths)
    with host.launch(variables=BRIEF_SPINNING) as launcher:
        request = Describe(
            settings=settings,
            devices=host.devices.count,
            suite_path=str(suite.path),
            paths=paths,
            quick=options.quick,
            chosen=parse_filters(options.chosen, "--set"),
        )
        try:
            description = describe(launcher, request)
        except SuiteError as error:
            raise SuiteError(f"{revision.label}: {error}") from None
        groups = make_groups(description, parse_filters(options.filters))
        context = Context(
            suite_file=suite,
            launcher=launcher,
            rank_launcher=LocalRanks(host.launch),  # starts nothing until it is asked to
            settings=settings,
            environment=host.read_environment(launcher),
            cache_bytes=system_files.read_last_level_caches_bytes(),
            run=group_runner.new_run_id(),
            interrupts=interrupts,
            paths=paths,
        )
        options.out.mkdir(parents=True, exist_ok=True)
        with Store.open(options.out / f"{name}.jsonl") as store:
            by_id = {group.id: group for group in groups}
            yield Side(revision=revision, context=context, groups=by_id, store=store)


def _match_groups(sides: Sequence[Side]) -> list[Group]:
    """The head's groups, with the variants that the base has, too."""
    base, head = (side.groups for side in sides)
    groups = [
        replace(group, variants=tuple(v for v in group.variants if v in base[group.id].variants))
        for group in head.values()
        if group.id in base
    ]
    groups = [group for group in groups if group.variants]
    if not groups:
        raise UsageError(
            f"{sides[0].revision.label} and {sides[1].revision.label} have no case in common; "
            "--filter and --set choose others"
        )
    if any(group.ranks is not None for group in groups):
        raise UsageError(
            "jobs of several ranks cannot take turns; run each revision, and compare the results "
            "files"
        )
    return groups


def _estimate(groups: Sequence[Group]) -> Estimate:
    """Of verdicts that are clear at the first look."""
    return Estimate(
        cases=sum(len(group.variants) for group in groups),
        prior={
            group.id: Duration(
                overhead_s=FIRST_VISITS * len(SIDES) * START_S,
                sampling_s=FIRST_VISITS * len(SIDES) * VISIT_S * len(group.variants),
            )
            for group in groups
        },
        rates={},
    )


class _Comparison:
    """One group on both sides."""

    def __init__(
        self, group: Group, sides: Sequence[Side], options: Options, watcher: Watcher
    ) -> None:
        self._group = group
        self._sides = sides
        self._options = options
        self._watcher = watcher
        self.visits = 0
        self.records: tuple[list[Record], list[Record]] = ([], [])

    def measure(self, interrupts: Interrupts) -> _Comparison:
        budget_s = self._options.case_budget_s * len(self._group.variants)
        started_s = time.monotonic()
        look, next_look = 1, FIRST_VISITS
        while self._group.variants and interrupts.count < interrupts.enough:
            self._visit()
            is_over = time.monotonic() - started_s >= budget_s
            if self.visits >= next_look:
                if self._is_decided(look):
                    break
                look, next_look = look + 1, int(GROWTH * next_look)
            if is_over and self.visits >= FIRST_VISITS:
                break
        return self

    def _visit(self) -> None:
        found = take_turns(self._group, self._sides, self.visits, self._watcher)
        self.visits += 1
        failed = {v for side in found for v, record in side.items() if record.status != "ok"}
        lost = {v for v in self._group.variants for side in found if v not in side}
        for side, kept, records in zip(self._sides, self.records, found, strict=True):
            for record in records.values():
                # Without the other side, its rounds are not those of a comparison.
                is_alone = record.status == "ok" and bool(failed or lost)
                stored = replace(record, run_id=f"{record.run_id}-alone") if is_alone else record
                kept.append(append_record(side.store, stored))
        left = tuple(variant for variant in self._group.variants if variant not in failed)
        self._group = replace(self._group, variants=left)

    def _is_decided(self, look: int) -> bool:
        threshold = self._options.threshold
        confidence = 1 - FALSE_SHARE / (look * (look + 1))
        judgement = compare_runs(*self.records, threshold=threshold, confidence=confidence)
        return all(is_clear(one.speedup, threshold) for one in judgement.comparisons)


def take_turns(
    group: Group, sides: Sequence[Side], number: int, watcher: Watcher
) -> list[dict[str, Record]]:
    """One visit: the records of each side, by variant. What both have measured has the same run."""
    links = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Both sides share the seed, for the order of turns and the inputs; each visit has another.
    first = sides[0].context
    seed = first.settings.seed + number

    def measure(place: int) -> dict[str, Record]:
        side = sides[place]
        context = replace(
            side.context,
            run=f"{first.run}-{number}",
            settings=replace(side.context.settings, seed=seed),
        )
        own = replace(side.groups[group.id], variants=group.variants)
        shown = watcher if place == 0 else _Silent(watcher)
        turn = TurnPlace(side=1 if place else 0, link=links[place])
        return group_runner.measure_once(own, context, shown, turn)

    with ThreadPoolExecutor(len(sides)) as pool:
        return wait_for([pool.submit(measure, place) for place in range(len(sides))])


def wait_for(futures: Sequence[Future[dict[str, Record]]]) -> list[dict[str, Record]]:
    """Of threads that end by themselves soon after Ctrl-C, which only reaches this one."""
    while True:
        try:
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Silent:
    """Only sentences of the other side are shown; its progress is the same."""

    def __init__(self, watcher: Watcher) -> None:
        self.say, self.remark = watcher.say, watcher.remark

    def begin(self, groups: Sequence[Group], settings: Settings, estimate: Estimate) -> None: ...
    def begin_group(self, group: Group) -> None: ...
    def progress(self, progress: Progress, records: Mapping[str, Record]) -> None: ...
    def end_group(self, group: Group, records: Sequence[Record]) -> None: ...


def _check_sources(
    base: Sequence[Record], head: Sequence[Record], checkouts: Checkouts
) -> list[str]:
    """Two sides that have loaded the same files measure nothing but chance."""
    loaded = [{k: v for record in side for k, v in record.sources.items()} for side in (base, head)]
    if not loaded[0] or loaded[0] != loaded[1]:
        return []
    if not checkouts.changed:
        return ["the revisions do not differ: both sides measured the same code"]
    return [
        f"warning: the revisions differ in {plural(len(checkouts.changed), 'file')}, and the suite "
        "has loaded none of them: both sides measured the same code; if it is imported from "
        "elsewhere, name the folder (--path), or build it (--build)"
    ]
