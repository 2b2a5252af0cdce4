"""Suites: what there is to measure, and measuring it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.cli.results import print_records

if TYPE_CHECKING:
    from flopwatch.records.record import Record
    from flopwatch.runner.session import Options, Preview
    from flopwatch.worker.rank_team import Seat


@click.command("list")
@options.as_json
def list_suites(as_json: bool) -> None:
    """List the built-in suites, a line each."""
    from flopwatch.suites.catalog import list_built_in

    suites = list_built_in()
    if as_json:
        click.echo(json.dumps([{"name": s.name, "summary": s.summary} for s in suites]))
        return
    width = max(len(suite.name) for suite in suites)
    for suite in suites:
        click.echo(f"{suite.name:{width}}  {suite.summary}")


@click.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
def init(path: Path) -> None:
    """Write a commented suite to PATH that runs as it is.

    \b
    flopwatch init my_suite.py
    flopwatch run my_suite.py --quick
    """
    from flopwatch.suites.catalog import write_template

    write_template(path)
    click.echo(f"wrote {path}; try: flopwatch run {path} --quick", err=True)


class Remembered(click.Command):
    """A command that knows the words it was called with, for who wants to repeat it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)  # parsing takes them away
        return super().parse_args(ctx, args)


WORDS = "flopwatch.words"


@click.command(
    cls=Remembered,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[OPTIONS] [--AXIS VALUE[,VALUE]]",
)
@click.argument("suite")
@click.option("--filter", "filters", multiple=True, metavar="AXIS=VALUE[,VALUE]",
              help="Only these values; may be repeated. `variant` is an axis too, and keeps the "
                   "baseline.")  # fmt: skip
@click.option("--set", "chosen", multiple=True, metavar="AXIS=VALUE[,VALUE]",
              help="These values instead of the suite's own, where it accepts others; may be "
                   "repeated. Also written --AXIS VALUE[,VALUE], after the suite.")  # fmt: skip
@click.option("--baseline", metavar="VARIANT",
              help="What the others are compared with, instead of the suite's own.")  # fmt: skip
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
    """Measure a SUITE: a built-in one by its name, or your own by its path.

    Variants of the same case are measured side by side; what the results file already answers is
    not measured again, so that an interrupted run is resumed by repeating it.

    \b
    flopwatch run activations --quick
    flopwatch run my_suite.py --filter dtype=float32 --budget 5m
    flopwatch run my_suite.py --dry-run
    flopwatch run switchback --grid published --dry-run
    flopwatch run my_suite.py --set tokens=1024 --set width=5120,8192
    flopwatch run activations --cache cold --threads 1 --out cold.jsonl
    """
    from flopwatch.output.console import open_stderr
    from flopwatch.output.progress import make_watcher
    from flopwatch.runner import session
    from flopwatch.runner.torchrun_launcher import find_place

    given["chosen"] += read_axes(given["suite"], context.args)
    place = find_place()
    options = _make_options(**given, command=[*_name_starter(place), "run", *context.meta[WORDS]])
    if place is not None and place.rank > 0:  # torchrun has started several of us
        if not dry_run:
            session.follow_runner(place)
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


def _name_starter(place: Seat | None) -> list[str]:
    """What stands before the words that we were given."""
    if place is None:
        return ["flopwatch"]
    machines = place.ranks // place.local_ranks
    nodes = [f"--nnodes={machines}"] if machines > 1 else []
    return ["torchrun", *nodes, f"--nproc-per-node={place.local_ranks}", "-m", "flopwatch"]


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
    from flopwatch.output.preview import as_dict, list_groups, list_remarks

    if as_json:
        click.echo(json.dumps(as_dict(preview)))
        return
    for line in list_groups(preview):
        click.echo(line)
    for remark in list_remarks(preview):
        click.echo(remark, err=True)
