"""A whole `flopwatch run`, from a suite's name to stored records."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flopwatch.devices import environment as machine
from flopwatch.devices import instruction_sets, system_files
from flopwatch.devices.kinds import Devices, is_host
from flopwatch.errors import UsageError
from flopwatch.output.background_load import warn_of_load
from flopwatch.records.record import Record
from flopwatch.records.store import Store, read
from flopwatch.runner import group_runner
from flopwatch.runner.durations import (
    SESSION_S,
    Estimate,
    Speed,
    estimate_run,
    list_dtypes,
    read_history,
)
from flopwatch.runner.group_runner import Context, Interrupts, Watcher
from flopwatch.runner.host import (
    Host,
    Start,
    call_function,
    describe,
    launch,
    measure_speed,
    prepare_host,
)
from flopwatch.runner.local_launcher import Launcher
from flopwatch.runner.memory_fit import (
    TOO_MUCH,
    Capacity,
    describe_idle,
    describe_misfits,
    find_capacity,
    find_largest_values,
    split_by_fit,
)
from flopwatch.runner.rank_processes import LocalRanks, RankLauncher, start_ranks
from flopwatch.runner.schedule import (
    Group,
    compare_conditions,
    fit_budget,
    list_unasked,
    make_groups,
    parse_filters,
    require_budget,
    resume,
)
from flopwatch.runner.torchrun_launcher import (
    RankServer,
    TorchrunRanks,
    connect,
    find_place,
)
from flopwatch.settings import Device, Settings
from flopwatch.suites.catalog import SuiteFile, find_suite
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import RANKS, Call, Describe, Description, RankPlace, RankRequest

RESULTS = Path("results")
YARDSTICK = "float32"
"""A matmul in it is timed in every job: it shows which node is slower than others."""
CALL_LIMIT_S = 3600.0
"""A called function sends nothing until it returns, and steps of a large model take long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the user asked for. None leaves the choice to flopwatch."""

    suite: str
    settings: Settings
    device: Device | None = None
    threads: int | None = None
    memory_limit_bytes: int | None = None
    filters: Sequence[str] = ()
    chosen: Sequence[str] = ()
    """Values in place of the suite's own, as ``axis=value,value``."""
    baseline: str | None = None
    """The variant to compare with, where it is not the suite's own choice."""
    quick: bool = False
    preset: str | None = None
    """The name of other grids of the suite, to be measured instead of its own."""
    budget_s: float | None = None
    out: Path | None = None
    rerun: bool = False
    force: bool = False
    skip_corrupt: bool = False
    command: Sequence[str] = ()
    """The words of the command line; none where a program calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """What a run would do."""

    suite: str
    groups: Sequence[Group]
    misfits: Mapping[str, Mapping[str, Failure]]
    """By group and variant: why it would be skipped for lack of memory."""
    estimate: Estimate
    on_request: Mapping[str, Sequence[str]]
    """Values by axis that the suite has, and a run must ask for."""
    presets: Sequence[str]
    """Names of grids that the suite has besides the one that would be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What other machines shall measure."""

    suite_file: SuiteFile
    host: Host
    """This machine, with the settings of theirs."""
    description: Description
    groups: Sequence[Group]
    out: Path

    def preview(self, options: Options, estimate: Estimate) -> Preview:
        return Preview(
            suite=self.description.name,
            groups=self.groups,
            misfits={},
            estimate=estimate,
            on_request=list_unasked(self.description, parse_filters(options.filters)),
            presets=[name for name in self.description.presets if name != options.preset],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a run did."""

    out: Path
    measured: Sequence[Record]
    answered: Sequence[Record]
    """Records of earlier runs that made measuring unnecessary."""
    interrupted: bool
    tried: Sequence[Record] = ()
    """Of the measured ones, tries of what was too large, where something smaller fits."""

    @property
    def judged(self) -> list[Record]:
        """Records that say how the run went."""
        tries = {id(record) for record in self.tried}
        return [r for r in (*self.answered, *self.measured) if id(r) not in tries]


def preview(options: Options) -> Preview:
    """Expand a suite without measuring any of it; torch is only loaded where the suite does, or
    where FLOPs must be turned into time."""
    machine.load()  # what is read later is the load from now on
    suite_file = find_suite(options.suite)
    host = _prepare(options, suite_file)
    settings = host.settings
    with host.launch(preload=()) as launcher:
        description, groups = _plan(options, suite_file, launcher, host, find_ranks())
        # Only a process with torch knows a GPU's memory.
        environment = host.facts if is_host(settings.device) else host.read_environment(launcher)
        fitting, misfits = split_by_fit(groups, _find_capacity(options, settings, environment))
        require_budget(options.budget_s, fitting)
        history = read_history(_find_out(options, description), host.facts)
        estimate = _estimate(options, fitting, launcher, settings, history)
    return Preview(
        suite=description.name,
        groups=groups,
        misfits={group.id: reasons for group, reasons in misfits},
        estimate=replace(estimate, extra_s=SESSION_S),
        on_request=list_unasked(description, parse_filters(options.filters)),
        presets=[name for name in description.presets if name != options.preset],
    )


def run(options: Options, watcher: Watcher) -> Report:
    """Measure what is not measured yet."""
    suite_file = find_suite(options.suite)
    with _open(options, suite_file) as (host, launcher, ranks):
        description, groups = _plan(options, suite_file, launcher, host, find_ranks())
        context = _make_context(options, suite_file, host, launcher, ranks)
        out = _find_out(options, description)
        return _measure_what_is_left(options, out, groups, context, watcher)


def plan(options: Options, devices: Devices, ranks: int) -> Plan:
    """What other machines shall measure, with these devices and up to so many ranks."""
    suite_file = find_suite(options.suite)
    host = _prepare(options, suite_file, devices)
    with host.launch(preload=()) as launcher:
        description, groups = _plan(options, suite_file, launcher, host, ranks)
    return Plan(
        suite_file=suite_file,
        host=host,
        description=description,
        groups=groups,
        out=_find_out(options, description),
    )


def run_groups(
    options: Options,
    groups: Sequence[Group],
    watcher: Watcher,
    *,
    interrupts: Interrupts,
    request: str,
    known: Sequence[Record] = (),
) -> Report:
    """Measure groups of a plan, here: in a job. `request` is what was asked of Slurm, and `known`
    are records of the same groups from before the job was requeued."""
    assert options.out is not None
    suite_file = find_suite(options.suite)
    with _open(options, suite_file) as (host, launcher, ranks):
        context = _make_context(options, suite_file, host, launcher, ranks)
        rates = measure_speed(launcher, [YARDSTICK], context.settings).rates
        slurm = {
            **context.environment.get("slurm", {}),
            "request": request,
            "matmul_flops_per_s": rates.get(YARDSTICK),
        }
        context = replace(
            context,
            environment={**context.environment, "slurm": slurm},
            interrupts=interrupts,
            is_alike=lambda record: find_request(record) == request,
        )
        return _measure_what_is_left(options, options.out, groups, context, watcher, known)


def find_request(record: Record) -> str | None:
    """What was asked of Slurm for it, as a digest; None where Slurm was not asked."""
    found = record.environment.get("slurm", {}).get("request")
    return found if isinstance(found, str) else None


Opened = tuple[Host, Launcher, RankLauncher]


@contextmanager
def _open(options: Options, suite_file: SuiteFile) -> Iterator[Opened]:
    """This machine, with launchers of its workers."""
    machine.load()  # what is read later is the load from now on
    host = _prepare(options, suite_file)
    place = find_place()
    # Ranks are processes that torchrun has started, or else our own.
    ranks: RankLauncher = LocalRanks(host.launch) if place is None else TorchrunRanks(place)
    with closing(ranks), host.launch() as launcher:
        yield host, launcher, ranks


def _make_context(
    options: Options, suite_file: SuiteFile, host: Host, launcher: Launcher, ranks: RankLauncher
) -> Context:
    environment = host.read_environment(launcher)
    if options.command:
        environment["command"] = machine.read_command(options.command)
    return Context(
        suite_file=suite_file,
        launcher=launcher,
        rank_launcher=ranks,
        settings=host.settings,
        environment=environment,
        cache_bytes=system_files.read_last_level_caches_bytes(),
        run=group_runner.new_run_id(),
        # torchrun kills its processes soon after it has asked them to end.
        interrupts=Interrupts(is_urgent=find_place() is not None),
    )


def serve_rank(place: RankPlace) -> None:
    """As any rank but 0 of those that torchrun has started: start this rank's workers when the
    runner, which is rank 0, asks for them."""
    # Ctrl-C reaches all processes of a job, and the runner decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    instruction_set = instruction_sets.probe()

    def launch_rank(request: RankRequest) -> Launcher:
        return launch(instruction_set, request.settings)

    with (
        closing(connect(place)) as line,
        closing(RankServer(line, place.rank, launch_rank)) as server,
    ):
        server.serve()


def read_environment() -> dict[str, Any]:
    """The environment that a record would carry if it were taken here and now, by default."""
    load = machine.load()  # before our own processes add to it
    host = prepare_host(Settings())
    with host.launch() as launcher:
        return {**host.read_environment(launcher), "load": load}


def call(
    function: str,
    arguments: Mapping[str, Any],
    *,
    device: Device | None = None,
    threads: int | None = None,
    ranks: int | None = None,
) -> Any:
    """What a function of `worker.called_functions` returns, as plain data, from a process that is
    set up like one that measures: with torch, threads, a limit on memory, and only instructions
    that work.

    With `ranks`, so many processes call it at once, torch.distributed between them, and the answer
    is that of rank 0. They are those that torchrun has started, or else our own.
    """
    patient = Settings(silence_limit_s=CALL_LIMIT_S)
    host = prepare_host(patient, device=device, threads=threads)
    place = None if ranks is None else find_place()
    others: RankLauncher = LocalRanks(host.launch) if place is None else TorchrunRanks(place)
    with closing(others), host.launch() as launcher:
        start: Start[Call] = launcher.start
        if ranks is not None:
            start = partial(start_ranks, launcher, others, ranks=ranks)
        given = {**arguments, "device": host.settings.device}
        return call_function(start, function, given, host.settings)


def find_ranks() -> int | None:
    """How many torchrun or srun has started; None: there are none."""
    place = find_place()
    return None if place is None else place.ranks


def _prepare(options: Options, suite_file: SuiteFile, devices: Devices | None = None) -> Host:
    return prepare_host(
        options.settings,
        project=suite_file.path.parent,
        device=options.device,
        threads=options.threads,
        memory_limit_bytes=options.memory_limit_bytes,
        devices=devices,
    )


def _measure_what_is_left(
    options: Options,
    out: Path,
    groups: Sequence[Group],
    context: Context,
    watcher: Watcher,
    earlier: Sequence[Record] = (),
) -> Report:
    capacity = _find_capacity(options, context.settings, context.environment)
    fitting, misfits = split_by_fit(groups, capacity)
    with Store.open(out, skip_corrupt=options.skip_corrupt, say=watcher.say) as store:
        store.waiting = context.interrupts.raised
        if (repaired := store.repaired) is not None:
            watcher.say(repaired)
        require_budget(options.budget_s, fitting)
        known = list(earlier)
        if not options.rerun:
            contents = read(out, skip_corrupt=options.skip_corrupt)
            known += contents.records
            for warning in contents.warnings:
                watcher.say(warning)
        groups, failures, tried = _choose_largest(fitting, known, context, store, watcher)
        fitted = fit_budget(options.budget_s, groups, context.settings)
        left, answered = _resume(groups, known, replace(context, settings=fitted))
        if answered:
            watcher.remark(
                f"{len(answered)} cases are in {out} already; --rerun measures them again"
            )
        for sentence in describe_misfits(misfits):
            watcher.say(sentence)
        history = known or read_history(out, context.environment)
        estimate = _announce(options, left, context, history, watcher)
        measured = group_runner.measure_groups(
            _predict(left, context),
            context,
            store=store,
            watcher=watcher,
            estimate=estimate,
            budget_s=options.budget_s,
        )
        # Last, as the largest are in most grids.
        skipped = [r for group, why in misfits for r in group_runner.skip(group, context, why)]
        skipped_before = {record.case_id for record in known if record.is_misfit}
        for record in skipped:
            if record.case_id not in skipped_before:
                store.append(record)
        if store.repaired is not None and store.repaired != repaired:
            watcher.say(store.repaired)  # another run on the same file was killed meanwhile
    return Report(
        out=out,
        measured=[*failures, *measured, *skipped],
        answered=answered,
        interrupted=bool(context.interrupts.count),
        tried=tried,
    )


def _resume(
    groups: Sequence[Group], known: Sequence[Record], context: Context
) -> tuple[list[Group], list[Record]]:
    return resume(
        groups,
        known,
        settings=context.settings,
        is_alike=context.is_alike or compare_conditions(context.environment, context.settings),
        suite_path=context.suite_file.path,
    )


def _choose_largest(
    groups: Sequence[Group],
    known: Sequence[Record],
    context: Context,
    store: Store,
    watcher: Watcher,
) -> tuple[list[Group], list[Record], list[Record]]:
    """The groups, with the largest values that fit where the user asks for them; what failed while
    they were searched; and of that, what was only too large."""
    filled: list[Group] = []
    failures: list[Record] = []
    tried: list[Record] = []

    def attempt(group: Group) -> list[Record]:
        left, answered = _resume([group], known, context)
        # A failure ends a try: nothing is known of the other variants, nor needed.
        failed = [record for record in answered if record.status != "ok"]
        if failed or not left:
            return failed
        failed = group_runner.attempt(group, context, watcher)
        watcher.say(f"{group.label} {'does not run' if failed else 'fits'}")
        return [group_runner.append_record(store, record) for record in failed]

    for group in groups:
        found, failed = find_largest_values(group, attempt)
        failures += failed
        if found is not None:
            filled.append(found)
            tried += [record for record in failed if record.status in TOO_MUCH]
    return filled, failures, tried


def _predict(groups: Sequence[Group], context: Context) -> list[Group]:
    """The groups with predictions, made before anything is measured."""
    from flopwatch.prediction.calibration import predict_group

    return [
        replace(group, predictions=predict_group(group, context.environment, context.settings))
        for group in groups
    ]


def _announce(
    options: Options,
    left: Sequence[Group],
    context: Context,
    history: Sequence[Record],
    watcher: Watcher,
) -> Estimate:
    """Say what is about to happen, and how long it takes; refuse a budget that cannot hold it."""
    place = find_place()
    idle = None if place is None else describe_idle(left, place.ranks)
    if idle is not None:
        watcher.say(idle)
    require_budget(options.budget_s, left)
    estimate = _estimate(options, left, context.launcher, context.settings, history)
    if left:
        watcher.remark(str(estimate))
        for sentence in warn_of_load(estimate.background_share):
            watcher.say(sentence)
    return estimate


def _find_capacity(
    options: Options, settings: Settings, environment: Mapping[str, Any]
) -> Capacity:
    """With --force all is tried, but never more ranks than there are GPUs or processes."""
    place = find_place()
    capacity = find_capacity(settings, environment, place)
    if not options.force:
        return capacity
    is_soft = place is None and is_host(settings.device)
    return replace(capacity, process_bytes=None, ranks=None if is_soft else capacity.ranks)


def _find_out(options: Options, description: Description) -> Path:
    return options.out or RESULTS / f"{description.name}.jsonl"


def _estimate(
    options: Options,
    groups: Sequence[Group],
    launcher: Launcher,
    settings: Settings,
    history: Sequence[Record],
) -> Estimate:
    speed = measure_speed(launcher, list_dtypes(groups), settings) if groups else Speed(rates={})
    load = machine.load()
    return estimate_run(
        groups,
        fit_budget(options.budget_s, groups, settings),
        speed,
        background_share=load.get("background_share", 0.0) + load.get("steal_share", 0.0),
        cores=os.cpu_count(),
        history=history,
        budget_s=options.budget_s,
    )


def _plan(
    options: Options, suite_file: SuiteFile, launcher: Launcher, host: Host, ranks: int | None
) -> tuple[Description, list[Group]]:
    """`ranks` are those that a job of ranks has where the user does not say how many."""
    if options.quick and options.preset is not None:
        raise UsageError("--quick and --grid each choose a grid; leave one of them out")
    filters = parse_filters(options.filters)
    request = Describe(
        settings=host.settings,
        devices=host.devices.count,
        device_name=host.devices.name,
        suite_path=str(suite_file.path),
        quick=options.quick,
        preset=options.preset,
        chosen=parse_filters(options.chosen, "--set"),
        baseline=options.baseline,
        ranks=None if RANKS in filters else ranks,
    )
    description = describe(launcher, request)
    groups = make_groups(description, filters)
    if host.settings.cache == "cold" and any(group.ranks is not None for group in groups):
        raise UsageError(
            "--cache cold is not for jobs of ranks, whose steps are far larger than any cache; "
            "leave it out"
        )
    return description, groups
