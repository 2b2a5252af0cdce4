"""A whole `flopwatch run --launcher slurm`, on the machine that it is called on: plan, send jobs,
follow them, take over what they measure.

The suite is expanded here, and its groups are dealt out over jobs, which measure them as any run
does (`slurm_job`). A job takes several short groups, so that they do not all wait in the queue and
import torch; jobs with equally many processes are one array. What earlier commands have sent for
the same results file is followed as well, and not sent again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flopwatch.devices.kinds import HOST, USUAL_ACCELERATOR, Devices, find_kind, is_host
from flopwatch.devices.present_accelerators import find_here
from flopwatch.errors import UsageError
from flopwatch.output.progress import PlainWatcher
from flopwatch.output.units import plural
from flopwatch.records.record import Record
from flopwatch.records.store import Store, read
from flopwatch.runner import session, slurm_job
from flopwatch.runner.durations import estimate_run
from flopwatch.runner.group_runner import new_run_id
from flopwatch.runner.schedule import Group, fit_budget, require_budget, resume
from flopwatch.runner.session import Options, Plan, Preview, Report, find_request
from flopwatch.runner.slurm_queue import (
    WARNING_S,
    NoAnswer,
    Resources,
    Shape,
    cancel,
    require_slurm,
    submit,
)
from flopwatch.runner.slurm_sweep import (
    Collector,
    Part,
    SentPart,
    Sweep,
    find_folder,
    is_of,
    read_sent_parts,
    remove_closed,
    write_ids,
    write_sweep,
)
from flopwatch.runner.slurm_watch import STARTING_S, UNKNOWN_SPEED, QueueWatch, expect_s
from flopwatch.settings import Settings

SHORT_JOB_S = 600.0
"""No more jobs than run at once are made of less work than this."""
LARGEST_ARRAY = 1000
"""Slurm allows one more (MaxArraySize), unless it is configured otherwise."""
LEAST_TIME_S = 1800.0
CAUTION = 3.0
"""By how much a job's time limit exceeds the estimate, where the user sets none."""
Decide = Callable[[int], bool]
"""After Ctrl-C: whether to cancel so many jobs; else they are left alone."""


def run(options: Options, resources: Resources, watcher: PlainWatcher, decide: Decide) -> Report:
    """Measure what is not measured yet, in jobs."""
    if session.find_ranks() is not None:
        raise UsageError(
            "--launcher slurm sends jobs itself, and this is one of several ranks already; leave "
            "--launcher out, or call flopwatch without torchrun and srun"
        )
    require_slurm(resources)
    devices = choose_target(options, resources)
    plan = session.plan(options, devices, resources.ranks)
    jobs = find_folder(plan.out.resolve())
    with _locked(jobs), Store.open(plan.out, skip_corrupt=options.skip_corrupt) as store:
        found = read(plan.out, skip_corrupt=options.skip_corrupt)
        for warning in found.warnings:
            watcher.say(warning)
        watch = QueueWatch(Collector(store, found.records), resources, watcher)
        watch.adopt(read_sent_parts(jobs))
        known = [] if options.rerun else [*found.records, *watch.collector.added]
        settings, left, answered = _choose_groups(options, resources, plan, known, watch)
        if left:
            request = partial(make_request, options, resources, plan)
            parts = pack(left, resources, request, settings)
            sweep = Sweep(
                name=f"flopwatch-{new_run_id()}",
                options=_make_job_options(options, plan, settings),
                settings=settings,
                parts=parts,
            )
            watch.parts += send(sweep, jobs, resources, devices)
            watcher.remark(describe_sent(watch.parts[-len(parts) :], resources))
        interrupted = _follow(watch, decide)
        remove_closed(jobs)
    return Report(
        out=plan.out,
        # Of what was measured again, since a job was lost, the last record says how it went.
        measured=list({record.case_id: record for record in watch.collector.added}.values()),
        answered=answered,
        interrupted=interrupted,
        tried=watch.tried,
    )


def preview(options: Options, resources: Resources) -> tuple[Preview, str]:
    """What a run would send, and in how many jobs."""
    require_slurm(resources)
    plan = session.plan(options, choose_target(options, resources), resources.ranks)
    _refuse_misfits(plan, resources)
    settings = fit_budget(options.budget_s, plan.groups, plan.host.settings)
    parts = pack(plan.groups, resources, partial(make_request, options, resources, plan), settings)
    estimate = estimate_run(plan.groups, settings, UNKNOWN_SPEED, budget_s=options.budget_s)
    jobs = f"{plural(len(parts), 'job')}, at most {resources.max_jobs} at once"
    return plan.preview(options, estimate), f"in {jobs}; the time is that of all jobs together"


def _follow(watch: QueueWatch, decide: Decide) -> bool:
    """Whether Ctrl-C has ended it."""
    try:
        watch.follow()
    except KeyboardInterrupt:
        ids = watch.list_ids()
        if ids and decide(len(ids)):
            cancel(ids)
            watch.follow()
        else:
            watch.watcher.say(
                f"{plural(len(ids), 'job')} left to Slurm ({', '.join(ids[:5])}"
                f"{', ...' if len(ids) > 5 else ''}); the same command follows them again and "
                "collects their records, scancel ends them"
            )
        return True
    return False


def choose_target(options: Options, resources: Resources) -> Devices:
    """The devices of the nodes that jobs run on. They need not be those of this machine: where it
    has none, GPUs that are asked of Slurm are taken for those that torch calls cuda."""
    arguments = resources.parse_arguments()
    asks_gpus = any(name.startswith(("gpus", "gres")) for name in arguments)
    here = find_here()
    guess = here.device or (USUAL_ACCELERATOR if asks_gpus else HOST)
    name, _, number = (options.device or guess).partition(":")
    if number:
        raise UsageError(f"--device {options.device}: Slurm chooses the GPU; say --device {name}")
    if name == HOST:
        return Devices()
    is_here = name == here.device
    return Devices(
        kind=find_kind(name),
        count=resources.ranks_per_node,
        name=here.names[0] if is_here else None,
    )


def _choose_groups(
    options: Options,
    resources: Resources,
    plan: Plan,
    known: Sequence[Record],
    watch: QueueWatch,
) -> tuple[Settings, list[Group], list[Record]]:
    """Settings, what is neither measured nor sent, and the records that answer for the rest."""
    _refuse_misfits(plan, resources)
    require_budget(options.budget_s, plan.groups)
    # How much memory there is, jobs see for themselves.
    settings = replace(
        fit_budget(options.budget_s, plan.groups, plan.host.settings),
        memory_limit_bytes=options.memory_limit_bytes,
    )
    by_request: dict[str | None, list[Record]] = {}
    for record in known:
        by_request.setdefault(find_request(record), []).append(record)
    sent = {(part.part.request, group.id) for part in watch.parts for group in part.part.groups}
    unsent: list[Group] = []
    answered: list[Record] = []
    for request, groups in _group_by_request(options, resources, plan).items():
        mine = by_request.get(request, [])
        if groups[0].candidates:
            mine = [as_asked(record, group) for record in mine if record.status == "ok"
                    for group in groups if is_of(record, group)]  # fmt: skip
        left, found = resume(
            groups, mine, settings=settings, is_alike=lambda record: True,
            suite_path=plan.suite_file.path,
        )  # fmt: skip
        unsent += [group for group in left if (request, group.id) not in sent]
        answered += found
    if answered:
        watch.watcher.remark(
            f"{len(answered)} cases are in {plan.out} already; --rerun measures them again"
        )
    return settings, unsent, answered


def _group_by_request(options: Options, resources: Resources, plan: Plan) -> dict[str, list[Group]]:
    groups: dict[str, list[Group]] = {}
    for group in plan.groups:
        groups.setdefault(make_request(options, resources, plan, group), []).append(group)
    return groups


def as_asked(record: Record, group: Group) -> Record:
    """As the case that was asked for, with the largest value that fits: the job has chosen it."""
    return replace(record, case_id=group.case_id(record.variant))


def _refuse_misfits(plan: Plan, resources: Resources) -> None:
    largest = max((group.ranks or 1 for group in plan.groups), default=1)
    if resources.ranks > 1 and all(group.ranks is None for group in plan.groups):
        raise UsageError(
            f"{plan.groups[0].suite} measures in one process; leave --nodes and --ranks-per-node "
            "out: --max-jobs says how many jobs run at once"
        )
    if largest > resources.ranks:
        raise UsageError(
            f"a case needs {largest} ranks, and --nodes {resources.nodes} --ranks-per-node "
            f"{resources.ranks_per_node} make {resources.ranks}; raise them, or take fewer --ranks"
        )


def make_request(options: Options, resources: Resources, plan: Plan, group: Group) -> str:
    """A digest of what decides how fast the group is: what was asked of Slurm, and the software and
    variables that jobs get from here."""
    software = plan.host.facts.get("software", {})
    settings = plan.host.settings
    shape = find_shape(group, resources)
    told = {
        "nodes": shape.nodes,
        "tasks": shape.tasks_per_node,
        "partition": resources.partition,
        "constraint": resources.constraint,
        "arguments": sorted(resources.arguments),
        "device": settings.device,
        "threads": options.threads,
        "candidates": group.candidates,
        "cache": settings.cache,
        "allocator": settings.allocator,
        "packages": software.get("packages"),
        "variables": software.get("variables"),
        "python": str(software.get("python")).rpartition(".")[0],
        "flopwatch": str(software.get("flopwatch")).rpartition(".")[0],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def find_shape(group: Group, resources: Resources) -> Shape:
    """The fewest nodes that have a place for each of its ranks."""
    ranks = group.ranks or 1
    nodes = math.ceil(ranks / resources.ranks_per_node)
    return Shape(nodes=nodes, tasks_per_node=math.ceil(ranks / nodes))


def pack(
    groups: Sequence[Group],
    resources: Resources,
    make_request: Callable[[Group], str],
    settings: Settings,
) -> list[Part]:
    """The groups as parts, one for each job: as many as run at once, or more where each still has
    SHORT_JOB_S of work; the longest groups are dealt out first. --groups-per-job cuts them as they
    come."""
    parts: list[Part] = []
    by_shape: dict[Shape, list[Group]] = {}
    for group in groups:
        by_shape.setdefault(find_shape(group, resources), []).append(group)
    for shape, alike in by_shape.items():
        times_s = {group.id: expect_s(group, settings) for group in alike}
        if resources.groups_per_job is not None:
            size = resources.groups_per_job
            chunks = [alike[at : at + size] for at in range(0, len(alike), size)]
        else:
            longest_s = SHORT_JOB_S
            if resources.time_s is not None:  # estimates may be wrong by half
                longest_s = min(longest_s, resources.time_s / 2)
            number = max(resources.max_jobs, math.ceil(sum(times_s.values()) / longest_s))
            chunks = _deal(alike, times_s, min(number, len(alike), LARGEST_ARRAY))
        parts += [
            Part(groups=chunk, shape=shape, request=make_request(chunk[0])) for chunk in chunks
        ]
    return parts


def _deal(groups: Sequence[Group], times_s: Mapping[str, float], number: int) -> list[list[Group]]:
    loads_s, chosen = [0.0] * number, {}
    for group in sorted(groups, key=lambda group: -times_s[group.id]):
        least = loads_s.index(min(loads_s))
        loads_s[least] += times_s[group.id]
        chosen[group.id] = least
    return [[g for g in groups if chosen[g.id] == place] for place in range(number)]


def _make_job_options(options: Options, plan: Plan, settings: Settings) -> Options:
    path = plan.suite_file.path
    is_file = options.suite.endswith(".py") or "/" in options.suite
    return replace(
        options,
        suite=str(path) if is_file else options.suite,
        settings=settings,
        device=settings.device,
        budget_s=None,
        rerun=False,
    )


def send(sweep: Sweep, jobs: Path, resources: Resources, devices: Devices) -> list[SentPart]:
    """Submit an array for each shape. Should this process end meanwhile, jobs are found again by
    their name."""
    folder = jobs / sweep.name
    write_sweep(folder, sweep)
    ids: dict[int, str] = {}
    try:
        for shape in dict.fromkeys(part.shape for part in sweep.parts):
            numbers = sweep.list_numbers(shape)
            works_s = [sum(expect_s(g, sweep.settings) for g in sweep.parts[n].groups)
                       for n in numbers]  # fmt: skip
            sent = submit(
                slurm_job.run_part,
                numbers,
                folder=folder,
                name=sweep.name_array(shape),
                shape=shape,
                max_jobs=resources.max_jobs,
                parameters={
                    "time": math.ceil((resources.time_s or _choose_time_s(max(works_s))) / 60),
                    **_list_parameters(resources, shape, devices, sweep.options),
                },
            )
            ids |= dict(zip(numbers, sent, strict=True))
            write_ids(folder, ids)
    except BaseException:
        with suppress(NoAnswer):
            cancel(ids.values())
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return [SentPart(folder, sweep, number, ids[number]) for number in range(len(sweep.parts))]


def _choose_time_s(work_s: float) -> float:
    return max(LEAST_TIME_S, CAUTION * (STARTING_S + work_s) + WARNING_S)


def _list_parameters(
    resources: Resources, shape: Shape, devices: Devices, options: Options
) -> dict[str, Any]:
    """Arguments of sbatch, by their names there."""
    given = resources.parse_arguments()
    chosen: dict[str, Any] = {
        name: value
        for name in ("partition", "account", "qos", "constraint")
        if (value := getattr(resources, name)) is not None
    }
    if options.threads is not None and not any(name.startswith("cpus-per") for name in given):
        # Ranks of a node share its threads.
        chosen["cpus-per-task"] = max(1, options.threads // shape.tasks_per_node)
    if not is_host(devices.kind.name) and not any(n.startswith(("gpus", "gres")) for n in given):
        chosen["gpus-per-node"] = shape.tasks_per_node
    return {**chosen, **given}


def describe_sent(parts: Sequence[SentPart], resources: Resources) -> str:
    groups = sum(len(part.part.groups) for part in parts)
    cases = sum(len(group.variants) for part in parts for group in part.part.groups)
    ids = sorted({(part.job_id or "").partition("_")[0] for part in parts})
    nodes = max(part.part.shape.nodes for part in parts)
    size = f" of up to {plural(nodes, 'node')}" if nodes > 1 else ""
    return (
        f"{plural(cases, 'case')} in {plural(groups, 'group')}, sent as {plural(len(parts), 'job')}"
        f"{size} (Slurm's {', '.join(ids)}), at most {resources.max_jobs} at once"
    )


@contextmanager
def _locked(jobs: Path) -> Iterator[None]:
    """One command follows the jobs of a results file; where locks do not work, that is up to the
    user."""
    try:
        jobs.mkdir(parents=True, exist_ok=True)
        folder = os.open(jobs, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(
            f"{jobs} cannot be made ({error.strerror}); choose another --out"
        ) from None
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another flopwatch follows the jobs of {jobs}; wait for it, or end it: its jobs "
                "go on"
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(folder)
        with suppress(OSError):  # there are jobs that have not been collected
            jobs.rmdir()
