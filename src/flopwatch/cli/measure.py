"""Measure: suites, and the profile of a training step."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from flopwatch.cli import options
from flopwatch.cli.look import print_records

if TYPE_CHECKING:
    from flopwatch.records.record import Record
    from flopwatch.runner.session import Options, Preview
    from flopwatch.settings import Device
    from flopwatch.worker.communicator import RankPlace


@click.command()
@click.option("--new", "template", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write a commented suite of your own to FILE, which runs as it is.")  # fmt: skip
@options.as_json
def suites(template: Path | None, as_json: bool) -> None:
    """List the built-in suites, or start one of your own.

    \b
    flopwatch suites
    flopwatch suites --new my_suite.py
    flopwatch run my_suite.py --quick
    """
    from flopwatch.suites.catalog import list_built_in, write_template

    if template is not None:
        write_template(template)
        click.echo(f"wrote {template}; try: flopwatch run {template} --quick", err=True)
        return
    found = list_built_in()
    if as_json:
        click.echo(json.dumps([{"name": s.name, "summary": s.summary} for s in found]))
        return
    width = max(len(suite.name) for suite in found)
    for suite in found:
        click.echo(f"{suite.name:{width}}  {suite.summary}")


class SuiteName(options.Word):
    """A built-in suite, or a file."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = super().shell_complete(ctx, param, incomplete)
        return found or [CompletionItem(incomplete, type="file")]


class Remembered(click.Command):
    """A command that knows the words it was called with, for who wants to repeat it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)  # parsing takes them away
        return super().parse_args(ctx, args)


WORDS = "flopwatch.words"
AXES = (
    "--model", "--seq-len", "--micro-batch", "--grad-accum", "--global-batch", "--precision",
    "--optimizer",
)  # fmt: skip
VARIANTS = ("--sharding", "--recompute", "--attention")


@click.command(
    cls=Remembered,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[OPTIONS] [--AXIS VALUE[,VALUE]]",
)
@click.argument("suite", type=SuiteName(list_known=options.list_suites))
@options.axis_options(*AXES, *VARIANTS)
@options.compile_option
@click.option("--filter", "filters", multiple=True, metavar="AXIS=VALUE[,VALUE]",
              help="Only these values; may be repeated. `variant` is an axis too, and keeps the "
                   "baseline.")  # fmt: skip
@click.option("--set", "chosen", multiple=True, metavar="AXIS=VALUE[,VALUE]",
              help="These values instead of the suite's own, where it accepts others; may be "
                   "repeated. Also written --AXIS VALUE[,VALUE], after the suite.")  # fmt: skip
@click.option("--baseline", metavar="VARIANT",
              help="What variants are compared with, instead of the suite's own.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer cases, ±5 %, 2 s a case.")
@click.option("--grid", "preset", metavar="NAME",
              help="Another grid that the suite declares, such as a published one, instead of its "
                   "own; --dry-run names them.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="List the cases and an estimate of the time; stop.")
@click.option("--budget", callback=options.read_duration, metavar="TIME",
              help="For the whole run, e.g. 10m. It is divided over the cases.")  # fmt: skip
@click.option("--case-budget", callback=options.read_duration, metavar="TIME",
              help="For one case, warm-up included.  [default: 10s, and at least 8 rounds]"
              )  # fmt: skip
@click.option("--target-interval", callback=options.read_percentage, metavar="PERCENT",
              help="Stop when intervals reach at most this far to either side.  [default: 2%]"
              )  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Results file, appended to.  [default: results/SUITE.jsonl]")  # fmt: skip
@click.option("--rerun", is_flag=True, help="Measure again what the results file already answers.")
@click.option("--force", is_flag=True, help="Try also what is predicted not to fit into memory.")
@options.device
@options.threads
@click.option("--cache", type=click.Choice(["hot", "cold"]), default="hot", show_default=True,
              help="hot: as the previous call left it. cold: overwritten before every sample."
              )  # fmt: skip
@click.option("--allocator", type=click.Choice(["retain", "default"]), default="retain",
              show_default=True,
              help="retain: freed memory is kept, so that page faults are not timed.")  # fmt: skip
@click.option("--memory-limit", callback=options.read_size, metavar="SIZE",
              help="For the worker, e.g. 8G.  [default: 90 % of what is free]")  # fmt: skip
@click.option("--timeout", callback=options.read_duration, metavar="TIME",
              help="A worker that reports nothing for so long is ended.  [default: 5m]"
              )  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of the inputs and of the order inside rounds.")  # fmt: skip
@click.option("--skip-corrupt", is_flag=True, help="Go on without unreadable lines of the file.")
@click.option("--json", "as_json", is_flag=True, help="Results as JSON on stdout.")
@click.pass_context
def run(context: click.Context, /, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Measure a suite, built-in or your own.

    SUITE is the name of a built-in suite, or the path of a file.

    Variants of the same case are measured side by side; what the results file already answers is
    not measured again, so that an interrupted run is resumed by repeating it.

    \b
    flopwatch run activations --quick
    flopwatch run my_suite.py --filter dtype=float32 --budget 5m
    flopwatch run my_suite.py --dry-run
    flopwatch run switchback --grid published --dry-run
    flopwatch run dyad --set tokens=1024 --set shape=1024x4096,4096x1024
    flopwatch run steps --model small --precision bf16-mixed --recompute none,full
    flopwatch run training --model small --seq-len 256 --micro-batch 4 --sharding none,full
    flopwatch run activations --cache cold --threads 1 --out cold.jsonl
    """
    from flopwatch.output.console import open_stderr
    from flopwatch.output.progress import make_watcher
    from flopwatch.runner import session
    from flopwatch.runner.torchrun_launcher import find_place

    given["chosen"] += (*take_axes(given), *read_axes(given["suite"], context.args))
    place = find_place()
    options = _make_options(**given, command=[*_name_starter(place), "run", *context.meta[WORDS]])
    if place is not None and place.rank > 0:  # torchrun has started several of us
        if not dry_run:
            session.serve_rank(place)
        return
    if dry_run:
        _print_preview(session.preview(options), as_json)
        return
    with make_watcher(open_stderr()) as watcher:
        report = session.run(options, watcher)
    print_records([*report.answered, *report.measured], as_json)
    watcher.say(f"records: {report.out}")
    if report.interrupted:
        sys.exit(130)
    sys.exit(1 if has_failed(report.judged) else 0)


def _name_starter(place: RankPlace | None) -> list[str]:
    """What stands before the words that we were given."""
    if place is None:
        return ["flopwatch"]
    machines = place.ranks // place.local_ranks
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
    fields = [name[2:].replace("-", "_") for name in AXES]
    values: dict[str, list[str] | None] = {field: given.pop(field) for field in fields}
    ways = {name[2:]: given.pop(name[2:]) for name in VARIANTS}
    compiled = given.pop("compiled")
    if compiled or any(ways.values()):
        from flopwatch.jobs.training_job import name_variant

        chosen = product(*(words or [None] for words in ways.values()))
        values["variant"] = [
            name_variant(**dict(zip(ways, words, strict=True)), compiled=compiled)
            for words in chosen
        ]
    return tuple(f"{field}={','.join(words)}" for field, words in values.items() if words)


def read_axes(suite: str, words: Sequence[str]) -> tuple[str, ...]:
    """Options that are none of ours name axes: ``--micro-batch 4`` is ``--set micro_batch=4``."""
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


def _make_options(**given: Any) -> Options:
    from flopwatch.runner.session import Options
    from flopwatch.settings import QUICK, Settings

    defaults = QUICK if given["quick"] else Settings()
    return Options(
        suite=given["suite"],
        settings=Settings(
            cache=given["cache"],
            allocator=given["allocator"],
            target_interval=given["target_interval"] or defaults.target_interval,
            budget_s=given["case_budget"] or defaults.budget_s,
            min_rounds=0 if given["case_budget"] else defaults.min_rounds,
            silence_limit_s=given["timeout"] or defaults.silence_limit_s,
            seed=given["seed"],
        ),
        device=given["device"],
        threads=given["threads"],
        memory_limit_bytes=given["memory_limit"],
        filters=given["filters"],
        chosen=given["chosen"],
        baseline=given["baseline"],
        quick=given["quick"],
        preset=given["preset"],
        budget_s=given["budget"],
        out=given["out"],
        rerun=given["rerun"],
        force=given["force"],
        skip_corrupt=given["skip_corrupt"],
        command=given["command"],
    )


def _print_preview(preview: Preview, as_json: bool) -> None:
    from flopwatch.output.progress import list_groups, list_remarks, preview_as_dict

    if as_json:
        click.echo(json.dumps(preview_as_dict(preview)))
        return
    for line in list_groups(preview):
        click.echo(line)
    for remark in list_remarks(preview):
        click.echo(remark, err=True)


@click.command(cls=options.JobCommand)
@options.job_options(
    "--model",
    "--seq-len",
    "--micro-batch",
    "--precision",
    "--optimizer",
    "--recompute",
    "--attention",
    seq_len=128,
    micro_batch=4,
    precision="fp32",
    optimizer="adamw",
    recompute="none",
    attention="sdpa",
)
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True,
              help="With the profiler, and as many without.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many of the slowest operations to list.")  # fmt: skip
@click.option("--trace", metavar="FILE",
              help="Write the timeline of the last step, for ui.perfetto.dev.")  # fmt: skip
@click.option("--nvtx", is_flag=True,
              help="Mark NVTX ranges for another profiler instead; implied by nsys.")  # fmt: skip
@options.device
@options.threads
@options.as_json
def profile(device: Device | None, threads: int | None, as_json: bool, **given: Any) -> None:
    """Split the time of a training step by region and operation.

    \b
    flopwatch profile --model small
    flopwatch profile --model small --attention plain --seq-len 512 --trace small.json
    flopwatch profile --model opt-125m --recompute full --top 20
    flopwatch profile --model qwen2:hidden_size=256:layers=4 --json
    """
    from dataclasses import asdict

    import msgspec

    from flopwatch.analysis.profile_request import Profile, make_request
    from flopwatch.output.console import print_sheets
    from flopwatch.output.profile_tables import as_dict, list_sentences, list_sheets
    from flopwatch.runner.session import call

    asked = {name: given.pop(name) for name in ("steps", "top", "trace", "nvtx")}
    request = make_request(options.make_job(given), **asked)
    click.echo(f"{request.steps} steps of {request.job.name} with the profiler, alternating with "
               "as many without", err=True)  # fmt: skip
    content = call("flopwatch.worker.profiler:profile", {"request": asdict(request)},
                   device=device, threads=threads)  # fmt: skip
    found = msgspec.convert(content, Profile)
    if as_json:
        click.echo(json.dumps(as_dict(found)))
    else:
        print_sheets(list_sheets(found))
        click.echo("\n".join(["", *list_sentences(found)]))
    if request.trace:
        click.echo(f"wrote {request.trace}; open it in https://ui.perfetto.dev", err=True)
