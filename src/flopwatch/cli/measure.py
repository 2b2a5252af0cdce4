"""Measure: suites, and the profile of a training step."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.cli.job_options import (
    IN_DETAIL,
    PARALLELISM,
    SPLIT,
    JobCommand,
    compile_option,
    job_options,
    make_job,
    name_field,
)
from flopwatch.cli.look import print_records
from flopwatch.cli.options import print_json, print_remark, refuse_idle
from flopwatch.jobs.training_job import name_variant
from flopwatch.settings import LARGEST_SEED

if TYPE_CHECKING:
    from flopwatch.records.record import Record
    from flopwatch.runner.session import Options, Preview
    from flopwatch.runner.slurm_queue import Resources
    from flopwatch.settings import Allocator, Cache, Device
    from flopwatch.worker.messages import RankPlace


class Remembered(Command):
    """Keeps the words that the command was called with: records store them, to repeat the run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)  # parsing takes them away
        return super().parse_args(ctx, args)


WORDS = "flopwatch.words"
DURATION = options.Word(options.read_duration)
AXES = (
    "--model", "--seq-len", "--micro-batch", "--grad-accum", "--global-batch", "--precision",
    "--optimizer",
)  # fmt: skip
VARIANTS = ("--sharding", "--recompute", "--attention")
SPLITS = (*PARALLELISM, *IN_DETAIL)
NEEDED = {"--sequence-parallel": "--tp", "--virtual-stages": "--pp", "--schedule": "--pp"}


CLUSTER_OPTIONS = (
    click.option("--launcher", type=click.Choice(["local", "slurm"]), default="local",
                 show_default=True,
                 help="slurm: measure in jobs of a Slurm cluster, from its login node, and collect "
                      "the records here."),
    click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
                 help="Nodes of the largest job. Cases with fewer ranks get fewer."),
    click.option("--ranks-per-node", type=click.IntRange(min=1), default=1, show_default=True,
                 metavar="N", help="Ranks on each node, with a GPU each if the device is one."),
    click.option("--partition", metavar="NAME", help="The partition to use, as sbatch has it."),
    click.option("--account", metavar="NAME", help="The account to charge."),
    click.option("--time", "time_s", type=DURATION, metavar="TIME",
                 help="Time limit of a job.  [default: three times the estimate, at least 30m]"),
    click.option("--qos", metavar="NAME", help="The quality of service."),
    click.option("--constraint", metavar="FEATURE", help="Features that nodes must have."),
    click.option("--slurm-arg", "arguments", multiple=True, metavar="NAME=VALUE",
                 help="Any other argument of sbatch, such as gres=gpu:8 or exclusive; may be "
                      "repeated."),
    click.option("--max-jobs", type=click.IntRange(min=1), default=8, show_default=True,
                 metavar="N", help="Number of jobs that run at once."),
    click.option("--groups-per-job", type=click.IntRange(min=1), metavar="N",
                 help="Number of groups that a job measures.  [default: some 10 minutes of them]"),
    click.option("--queue-limit", "queue_limit_s", type=DURATION, metavar="TIME",
                 help="Cancel jobs that have not started after this.  [default: wait]"),
)  # fmt: skip


def cluster_options(command: Any) -> Any:
    for option in reversed(CLUSTER_OPTIONS):
        command = option(command)
    return command


def take_resources(context: click.Context, given: dict[str, Any]) -> Resources | None:
    """What is asked of Slurm; None without it."""
    from flopwatch.runner.slurm_queue import Resources

    names = [field.name for field in fields(Resources)]
    asked = {name: given.pop(name) for name in names}
    if given.pop("launcher") == "slurm":
        resources = Resources(**asked)
        resources.parse_arguments()
        return resources
    idle = [option for field, option in options.list_given(context).items() if field in names]
    if idle:
        raise click.UsageError(f"{idle[0]} is for --launcher slurm; add that, or leave it out")
    return None


@click.command(
    cls=Remembered,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[OPTIONS] [--AXIS VALUE[,VALUE]]",
)
@click.argument("suite", required=False,
                type=options.NameOrFile(list_known=options.list_suites))  # fmt: skip
@options.only_list("the suites, built-in and of plug-ins.")
@click.option("--new", "template", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write a commented example suite to FILE; it runs as it is.")  # fmt: skip
# Words are not read here: the suite decides which values it accepts.
@job_options(*(*AXES, *VARIANTS, *SPLITS), many=(*AXES, *VARIANTS, *SPLITS), read=options.read_word)
@compile_option
@options.filters
@options.chosen
@click.option("--baseline", metavar="VARIANT",
              help="Compare variants with this one instead of the suite's baseline.")  # fmt: skip
@options.quick("fewer cases, 2 s a case.")
@click.option("--grid", "preset", metavar="NAME",
              help="Measure another grid that the suite declares, such as a published one; "
                   "--dry-run lists them.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="List the cases, estimate the time and exit.")
@click.option("--budget", "budget_s", type=DURATION, metavar="TIME",
              help="Time for the whole run, e.g. 10m, divided over the cases. What is begun within "
                   "it is finished.")  # fmt: skip
@options.case_budget("[default: 10s, and at least 8 rounds]")
@click.option("--target-interval", type=options.Word(options.read_percentage), metavar="PERCENT",
              help="Stop sampling when intervals are within plus or minus this.  [default: when "
                   "every verdict is settled]")  # fmt: skip
@options.out("Results are appended.  [default: results/SUITE.jsonl]")
@click.option("--rerun", is_flag=True, help="Measure again what the results file already has.")
@click.option(
    "--force", is_flag=True, help="Also run cases that are predicted not to fit into memory."
)
@options.device()
@options.threads
@click.option("--cache", type=click.Choice(["hot", "cold"]), default="hot", show_default=True,
              help="hot: caches as the previous call left them. cold: overwritten before a sample."
              )  # fmt: skip
@click.option("--allocator", type=click.Choice(["retain", "default"]), default="retain",
              show_default=True,
              help="retain: freed memory is kept, so that page faults are not timed.")  # fmt: skip
@options.memory_limit("For the worker.  [default: 90 % of what is free]")
@click.option("--timeout", "silence_limit_s", type=DURATION, metavar="TIME",
              help="The time limit. A worker that reports nothing for so long is ended.  "
                   "[default: 5m]"
              )  # fmt: skip
@click.option("--seed", type=click.IntRange(0, LARGEST_SEED), default=0, show_default=True,
              help="Seed of the inputs and of the order within rounds.")  # fmt: skip
@cluster_options
@options.skip_corrupt
@options.verbose
@options.quiet
@options.columns
@options.as_json
@click.pass_context
def run(
    context: click.Context,
    /,
    only_list: bool,
    template: Path | None,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    columns: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure a suite, built-in or your own, and print the answer.

    SUITE is the name of a suite (--list) or a file, such as --new writes.

    Variants of the same case are measured side by side. What the results file already has is not
    measured again: to resume an interrupted run, repeat the command.

    \b
    flopwatch run --list
    flopwatch run activations --quick
    flopwatch run --new my_suite.py
    flopwatch run my_suite.py --filter dtype=float32 --budget 5m
    flopwatch run my_suite.py --dry-run
    flopwatch run switchback --grid published --dry-run
    flopwatch run dyad --set tokens=1024 --set shape=1024x4096,4096x1024
    flopwatch run steps --model small --precision bf16-mixed --recompute none,full
    flopwatch run training --model small --seq-len 256 --micro-batch 4 --sharding none,full
    flopwatch run training --ranks 4 --sharding full --tp 1,2 --pp 1,2 --schedule interleaved
    flopwatch run activations --cache cold --threads 1 --out cold.jsonl
    flopwatch run training --model small --launcher slurm --nodes 2 --ranks-per-node 8 --time 1h
    """
    options.refuse_two_lengths(context)
    resources = take_resources(context, given)
    if only_list:
        refuse_idle(context, "--list names the suites, and --dry-run the cases of one",
                    "only_list", "as_json")  # fmt: skip
        list_suites(as_json)
        return
    if template is not None:
        refuse_idle(context, "--new writes a suite and runs nothing", "template")
        from flopwatch.suites.catalog import write_template

        write_template(template)
        print_remark(f"wrote {template}; try: flopwatch run {template} --quick")
        return
    if given["suite"] is None:
        names = ", ".join(options.list_suites())
        raise click.UsageError(
            f"name a suite: {names}, or a file of yours; `flopwatch run --list` describes them, "
            "`flopwatch run --new FILE` starts one"
        )
    from flopwatch.output.console import open_stderr
    from flopwatch.output.progress import make_watcher
    from flopwatch.runner import session
    from flopwatch.runner.torchrun_launcher import find_place

    given["chosen"] += (*take_axes(given), *read_axes(given["suite"], context.args))
    place = find_place()
    command = [*_name_starter(place), "run", *context.meta[WORDS]]
    asked = _make_options(**given, command=command)
    if place is not None and place.rank > 0:  # torchrun has started several of us
        if not dry_run:
            session.serve_rank(place)
        return
    if dry_run:
        preview_run(asked, resources, as_json)
        return
    with make_watcher(open_stderr(), is_quiet=quiet) as watcher:
        if resources is None:
            report = session.run(asked, watcher)
        else:
            from flopwatch.runner import slurm_launcher

            report = slurm_launcher.run(asked, resources, watcher, watcher.confirm_cancel)
    print_records(
        [*report.answered, *report.measured],
        more=f"flopwatch show {shlex.quote(str(report.out))} -v",
        verbose=verbose, quiet=quiet, columns=columns, as_json=as_json,
    )  # fmt: skip
    watcher.remark(f"records: {report.out}")
    if report.interrupted:
        sys.exit(130)
    sys.exit(1 if has_failed(report.judged) else 0)


def preview_run(asked: Options, resources: Resources | None, as_json: bool) -> None:
    from flopwatch.runner import session

    if resources is None:
        _print_preview(session.preview(asked), as_json)
        return
    from flopwatch.runner import slurm_launcher

    preview, jobs = slurm_launcher.preview(asked, resources)
    _print_preview(preview, as_json)
    print_remark(jobs)


def list_suites(as_json: bool) -> None:
    from flopwatch.suites.catalog import list_built_in, list_plugged_in

    found = [*list_built_in(), *list_plugged_in()]
    if as_json:
        names = ("name", "summary", "package")
        print_json([{name: getattr(suite, name) for name in names} for suite in found])
        return
    width = max(len(suite.name) for suite in found)
    for suite in found:
        origin = "" if suite.package is None else f" ({suite.package})"
        options.print_lines(f"{suite.name:{width}}  {suite.summary}{origin}")


def _name_starter(place: RankPlace | None) -> list[str]:
    """The program that was called, before the words that it was given."""
    from flopwatch.runner.srun_place import is_step

    if place is None:
        return ["flopwatch"]
    machines = place.ranks // place.local_ranks
    if is_step():
        nodes = [f"--nodes={machines}", f"--ntasks-per-node={place.local_ranks}"]
        return ["srun", *nodes, "python", "-m", "flopwatch"]
    nodes = [f"--nnodes={machines}"] if machines > 1 else []
    return ["torchrun", *nodes, f"--nproc-per-node={place.local_ranks}", "-m", "flopwatch"]


def take_axes(given: dict[str, Any]) -> tuple[str, ...]:
    """Options of a training job choose values of axes, ``--seq-len 256`` is ``--set seq_len=256``,
    and variants: ``--sharding none,full --recompute full`` is ``--set
    variant=none+recompute-full,full+recompute-full``."""
    for word in given["precision"] or ():
        if word.rstrip("%").replace(".", "", 1).isdecimal():
            raise click.UsageError(
                "--precision is a dtype policy, such as bf16-mixed; the width of intervals is "
                f"--target-interval {word}"
            )
    fields = list(map(name_field, AXES))
    values: dict[str, list[str] | None] = {field: given.pop(field) for field in fields}
    ways = {name: given.pop(name) for name in map(name_field, (*VARIANTS, *SPLITS))}
    for option, needed in NEEDED.items():
        if ways[name_field(option)] and not ways[name_field(needed)]:
            raise click.UsageError(f"{option} says how {needed} does it; give {needed}, too")
    compiled = given.pop("compiled")
    if compiled or any(ways.values()):
        chosen = product(*(words or [None] for words in ways.values()))
        named = (_name_way(dict(zip(ways, words, strict=True)), compiled) for words in chosen)
        values["variant"] = list(dict.fromkeys(named))  # a schedule of no pipeline is no other one
    return tuple(f"{field}={','.join(words)}" for field, words in values.items() if words)


def _name_way(words: dict[str, str | None], compiled: bool) -> str:
    """The variant of these options; 1 rank divides nothing."""
    split = {name: words.pop(name) for name in map(name_field, SPLITS)}
    if not any(split.values()):
        return name_variant(**words, compiled=compiled)
    sizes = {name: options.read_count(f"--{name}", split[name] or "1") for name in SPLIT}
    stages, sequence = split["virtual_stages"], split["sequence_parallel"] or "no"
    fields: dict[str, Any] = {field: sizes[name] for name, field in SPLIT.items()}
    name = name_variant(
        **words,
        compiled=compiled,
        **fields,
        virtual_stages=stages and options.read_count("--virtual-stages", stages),
        schedule=split["schedule"],
        sequence=options.choose_from("yes", "no")("--sequence-parallel", sequence) == "yes",
    )
    return "none" if name == "eager" else name


def read_axes(suite: str, words: Sequence[str]) -> tuple[str, ...]:
    """Options that no command has name axes: ``--micro-batch 4`` is ``--set micro_batch=4``."""
    chosen = []
    left = [suite, *words] if suite.startswith("--") else list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if not name.startswith("--") or len(name) < 3:
            raise click.UsageError(f"there is no option {name!r}; see flopwatch run --help")
        if suite.startswith("--"):
            raise click.UsageError(f"write the suite before {name}, which names one of its axes")
        if not equals and (not left or left[0].startswith("--")):
            raise click.UsageError(
                f"there is no option {name}; an axis of the suite would need a value: {name} VALUE"
            )
        axis = name.removeprefix("--").replace("-", "_")
        chosen.append(f"{axis}={value if equals else left.pop(0)}")
    return tuple(chosen)


FINE = ("ok", "unsupported")
"""A combination that a suite itself declares not to exist is no failure."""


def has_failed(records: Sequence[Record]) -> bool:
    """Nor is one that was predicted not to fit, as long as there are others."""
    tried = [record for record in records if not record.is_misfit]
    return not tried or any(record.status not in FINE for record in tried)


def _make_options(
    *,
    cache: Cache,
    allocator: Allocator,
    target_interval: float | None,
    case_budget_s: float | None,
    silence_limit_s: float | None,
    seed: int,
    **given: Any,
) -> Options:
    from flopwatch.runner.session import Options
    from flopwatch.settings import QUICK, Settings

    defaults = QUICK if given["quick"] else Settings()
    settings = Settings(
        cache=cache,
        allocator=allocator,
        target_interval=target_interval or defaults.target_interval,
        budget_s=case_budget_s or defaults.budget_s,
        min_rounds=0 if case_budget_s else defaults.min_rounds,
        silence_limit_s=silence_limit_s or defaults.silence_limit_s,
        seed=seed,
    )
    return Options(settings=settings, **given)


def _print_preview(preview: Preview, as_json: bool) -> None:
    from flopwatch.output.progress import list_groups, list_remarks, preview_as_dict

    if as_json:
        print_json(preview_as_dict(preview))
        return
    for line in list_groups(preview):
        click.echo(line)
    for remark in list_remarks(preview):
        click.echo(remark, err=True)


@click.command(cls=JobCommand)
@job_options(
    "--model", "--seq-len", "--micro-batch", "--precision", "--optimizer", "--recompute",
    "--attention",
    seq_len=128, micro_batch=4, optimizer="adamw", recompute="none", attention="sdpa",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True,
              help="Steps with the profiler, and as many without.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="Number of slowest operations to list.")  # fmt: skip
@click.option("--trace", metavar="FILE",
              help="Write the timeline of the last step, for ui.perfetto.dev.")  # fmt: skip
@click.option("--nvtx", is_flag=True,
              help="Mark NVTX ranges for another profiler instead; implied by nsys.")  # fmt: skip
@options.device()
@options.threads
@options.as_json
def profile(device: Device | None, threads: int | None, as_json: bool, **given: Any) -> None:
    """Split the time of a training step by region and operation.

    The precision is what the device is usually trained in, unless you choose: fp32 on a CPU,
    bf16-mixed on accelerators.

    \b
    flopwatch profile --model small
    flopwatch profile --model small --attention plain --seq-len 512 --trace small.json
    flopwatch profile --model opt-125m --recompute full --top 20
    flopwatch profile --model qwen2:hidden_size=256:layers=4 --json
    """
    from dataclasses import asdict

    import msgspec

    from flopwatch.analysis.profile_request import Profile, make_request
    from flopwatch.devices.environment import LoadWatch, sample_background_share
    from flopwatch.devices.present_accelerators import choose_devices
    from flopwatch.output.background_load import warn_of_load
    from flopwatch.output.profile_tables import as_dict, list_sentences, list_sheets
    from flopwatch.runner.session import call

    asked = {name: given.pop(name) for name in ("steps", "top", "trace", "nvtx")}
    if given["precision"] is None:
        given["precision"] = choose_devices(device).kind.usual_precision
    request = make_request(make_job(given), **asked)
    print_remark(f"{request.steps} steps of {request.job.name} with the profiler, alternating with "
                 "as many without")  # fmt: skip
    for warning in warn_of_load(sample_background_share()):
        print_remark(warning)
    watch = LoadWatch()
    content = call("profile_step", {"request": asdict(request)},
                   device=device, threads=threads)  # fmt: skip
    share = watch.read_share()
    found = msgspec.convert(content, Profile)
    shown = {**as_dict(found), "background_share": share}
    options.print_found(as_json, shown, list_sheets(found), list_sentences(found, share))
    if request.trace:
        click.echo(f"wrote {request.trace}; open it in https://ui.perfetto.dev", err=True)
