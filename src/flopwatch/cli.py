"""The command line: one thin function a command. It and `report.console` are all that prints.

Results go to stdout, everything else to stderr. Exit codes: 0 fine, 1 some cases failed, 2 usage,
130 interrupted. Imports happen inside the commands, so that `flopwatch --help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from flopwatch import __version__
from flopwatch.errors import FlopwatchError
from flopwatch.report.layouts import LAYOUTS

if TYPE_CHECKING:
    from flopwatch.records.record import Record
    from flopwatch.session import Options, Preview
    from flopwatch.settings import Device


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="flopwatch")
def cli() -> None:
    """A stopwatch for training FLOPs.

    \b
    flopwatch list                       the built-in suites
    flopwatch run activations --quick    measure one, table on stdout, records in results/
    flopwatch show results/activations.jsonl
    flopwatch init my_suite.py           a suite of your own: a template that runs
    flopwatch run my_suite.py
    flopwatch doctor                     is this machine fit for measuring?
    """


@cli.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_suites(as_json: bool) -> None:
    """List the built-in suites, a line each."""
    from flopwatch.catalog import list_built_in

    suites = list_built_in()
    if as_json:
        click.echo(json.dumps([{"name": s.name, "summary": s.summary} for s in suites]))
        return
    width = max(len(suite.name) for suite in suites)
    for suite in suites:
        click.echo(f"{suite.name:{width}}  {suite.summary}")


@cli.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
def init(path: Path) -> None:
    """Write a commented suite to PATH that runs as it is.

    \b
    flopwatch init my_suite.py
    flopwatch run my_suite.py --quick
    """
    from flopwatch.catalog import write_template

    write_template(path)
    click.echo(f"wrote {path}; try: flopwatch run {path} --quick", err=True)


def _duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    from flopwatch.plan import parse_duration

    return None if value is None else parse_duration(value)


def _size(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    from flopwatch.plan import parse_bytes

    return None if value is None else parse_bytes(value)


def _percentage(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    from flopwatch.plan import parse_percentage

    return None if value is None else parse_percentage(value)


@cli.command()
@click.argument("suite")
@click.option("--filter", "filters", multiple=True, metavar="AXIS=VALUE[,VALUE]",
              help="Only these values; may be repeated. `variant` is an axis too, and keeps the "
                   "baseline.")  # fmt: skip
@click.option("--set", "chosen", multiple=True, metavar="AXIS=VALUE[,VALUE]",
              help="These values instead of the suite's own, where it accepts others; may be "
                   "repeated.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer cases, ±5 %, 2 s a case.")
@click.option("--grid", "preset", metavar="NAME",
              help="Another grid that the suite declares, such as a published one, instead of its "
                   "own; --dry-run names them.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="List the cases and an estimate of the time; stop.")
@click.option("--budget", callback=_duration, metavar="TIME",
              help="For the whole run, e.g. 10m. It is divided over the cases.")  # fmt: skip
@click.option("--case-budget", callback=_duration, metavar="TIME",
              help="For one case, warm-up included.  [default: 10s, and at least 8 rounds]"
              )  # fmt: skip
@click.option("--precision", callback=_percentage, metavar="PERCENT",
              help="Stop when intervals reach at most this far to either side.  [default: 2%]"
              )  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Results file, appended to.  [default: results/SUITE.jsonl]")  # fmt: skip
@click.option("--rerun", is_flag=True, help="Measure again what the results file already answers.")
@click.option("--force", is_flag=True, help="Try also what is foretold not to fit into memory.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]),
              help="[default: cuda where torch finds one]")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="[default: usable cores]")  # fmt: skip
@click.option("--cache", type=click.Choice(["hot", "cold"]), default="hot", show_default=True,
              help="hot: as the previous call left it. cold: overwritten before every sample."
              )  # fmt: skip
@click.option("--allocator", type=click.Choice(["retain", "default"]), default="retain",
              show_default=True,
              help="retain: freed memory is kept, so that page faults are not timed.")  # fmt: skip
@click.option("--memory-limit", callback=_size, metavar="SIZE",
              help="For the worker, e.g. 8G.  [default: 90 % of what is free]")  # fmt: skip
@click.option("--timeout", callback=_duration, metavar="TIME",
              help="A worker that reports nothing for so long is ended.  [default: 5m]"
              )  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of the inputs and of the order inside rounds.")  # fmt: skip
@click.option("--skip-corrupt", is_flag=True, help="Go on without unreadable lines of the file.")
@click.option("--json", "as_json", is_flag=True, help="Results as JSON on stdout.")
def run(dry_run: bool, as_json: bool, **given: Any) -> None:
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
    from flopwatch import session
    from flopwatch.report.console import open_stderr
    from flopwatch.report.progress import make_watcher

    options = _make_options(**given)
    if dry_run:
        _print_preview(session.preview(options), as_json)
        return
    with make_watcher(open_stderr()) as watcher:
        report = session.run(options, watcher)
    _print_rows([*report.answered, *report.measured], as_json)
    watcher.say(f"records: {report.out}")
    if report.interrupted:
        sys.exit(130)
    failed = any(record.status not in FINE for record in [*report.answered, *report.measured])
    sys.exit(1 if failed else 0)


FINE = ("ok", "unsupported")
"""A combination that a suite itself declares not to exist is no failure."""


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--skip-corrupt", is_flag=True, help="Go on without unreadable lines.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(file: Path, skip_corrupt: bool, as_json: bool) -> None:
    """Summarise a results FILE: the newest record of every case.

    \b
    flopwatch show results/activations.jsonl
    flopwatch show results/activations.jsonl --json | jq '.[].speedup.median'
    """
    _print_rows(_read_records([file], skip_corrupt), as_json)


@cli.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--layout", type=click.Choice(list(LAYOUTS)), default="plain", show_default=True,
              help="plain: the usual tables. Others first print what a published benchmark prints, "
                   "in its words.")  # fmt: skip
@click.option("--skip-corrupt", is_flag=True, help="Go on without unreadable lines.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def table(results: tuple[Path, ...], layout: str, skip_corrupt: bool, as_json: bool) -> None:
    """Lay RESULTS out as others have published theirs.

    \b
    flopwatch table results/dyad.jsonl --layout dyad
    flopwatch table results/dyad.jsonl --layout dyad --json | jq '.[].total_ms'
    flopwatch table results/switchback.jsonl --layout switchback
    flopwatch table results/steps.jsonl --layout cs336
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.console import print_rows

    rows = summarize(_read_records(results, skip_corrupt))
    printout = LAYOUTS[layout](rows)
    for remark in printout.remarks:
        click.echo(f"flopwatch: {remark}", err=True)
    if as_json:
        click.echo(json.dumps(printout.content))
        return
    for line in printout.lines:
        click.echo(line)
    print_rows(rows)


@cli.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--skip-corrupt", is_flag=True, help="Go on without unreadable lines.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def warmup(results: tuple[Path, ...], skip_corrupt: bool, as_json: bool) -> None:
    """Say what the first steps in RESULTS paid for, and how many to leave out.

    \b
    flopwatch warmup results/steps.jsonl
    flopwatch warmup results/steps.jsonl --json | jq '.[].enough'
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.warmup import lay_out

    printout = lay_out(summarize(_read_records(results, skip_corrupt)))
    if not printout.content:
        click.echo("no records", err=True)
    for line in [json.dumps(printout.content)] if as_json else printout.lines:
        click.echo(line)


@cli.command()
@click.argument("sql")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--skip-corrupt", is_flag=True, help="Go on without unreadable lines.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def query(sql: str, files: tuple[Path, ...], skip_corrupt: bool, as_json: bool) -> None:
    """Ask records anything, in SQL (DuckDB), over FILES or all of results/.

    Views: `records` has one row a record, `samples` one a sample and phase, `regions` one a sample
    and region, `curves` one a point of a curve.

    \b
    flopwatch query "SELECT suite, variant, count(*) FROM records GROUP BY ALL"
    flopwatch query "SELECT variant, phase, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL"
    flopwatch query "SELECT params->>'dtype', status, reason FROM records WHERE status <> 'ok'"
    flopwatch query "DESCRIBE samples"
    """
    from flopwatch.records.query import query as ask
    from flopwatch.report.console import print_table
    from flopwatch.session import RESULTS

    paths = list(files) or sorted(RESULTS.glob("*.jsonl"))
    if not paths:
        raise click.UsageError(f"no results in {RESULTS}/ here; name a file, or run a suite first")
    result = ask(paths, sql, skip_corrupt=skip_corrupt)
    for warning in result.warnings:
        click.echo(f"flopwatch: {warning}", err=True)
    if as_json:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        click.echo(json.dumps(rows, default=str))
        return
    print_table(result.columns, result.rows)


@cli.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]),
              help="[default: cuda where torch finds one]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def precision(device: Device | None, as_json: bool) -> None:
    """Show what short numbers do to a sum, and what autocast makes of a small model.

    \b
    flopwatch precision
    flopwatch precision --device cpu --json
    """
    import msgspec

    from flopwatch.explain.precision import Observed
    from flopwatch.report.console import print_table
    from flopwatch.report.precision import lay_out
    from flopwatch.session import call

    content = call("flopwatch.explain.precision:observe", {}, device=device)
    if as_json:
        click.echo(json.dumps(content))
        return
    for table in lay_out(msgspec.convert(content, Observed)):
        click.echo(table.title)
        print_table(table.columns, table.rows)
        for remark in table.remarks:
            click.echo(remark)


@cli.command()
@click.argument("model")
@click.option("--batch", type=click.IntRange(min=1), default=4, show_default=True,
              help="Texts in a step.")  # fmt: skip
@click.option("--context", type=click.IntRange(min=2), default=128, show_default=True,
              help="Tokens of a text.")  # fmt: skip
@click.option("--precision", type=click.Choice(["fp32", "bf16-autocast", "fp16-autocast", "bf16"]),
              default="fp32", show_default=True)  # fmt: skip
@click.option("--attention", type=click.Choice(["sdpa", "plain"]), default="sdpa",
              show_default=True,
              help="sdpa: torch's fused one. plain: products and softmax apart.")  # fmt: skip
@click.option("--optimizer", type=click.Choice(["adamw", "adamw-unfused", "sgd"]),
              default="adamw", show_default=True)  # fmt: skip
@click.option("--checkpointing", is_flag=True,
              help="Blocks are computed again in the backward pass.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True,
              help="With the profiler, and as many without.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many of the slowest operations to list.")  # fmt: skip
@click.option("--trace", metavar="FILE",
              help="Write the timeline of the last step, for ui.perfetto.dev.")  # fmt: skip
@click.option("--nvtx", is_flag=True,
              help="Mark NVTX ranges for another profiler instead; implied by nsys.")  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]),
              help="[default: cuda where torch finds one]")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="[default: usable cores]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def profile(device: Device | None, threads: int | None, as_json: bool, **given: Any) -> None:
    """Say where the time of a training step of MODEL goes, by region and by kind of operation.

    \b
    flopwatch profile small
    flopwatch profile small --attention plain --context 512 --trace small.json
    flopwatch profile opt-125m --checkpointing --top 20
    flopwatch profile qwen2:hidden_size=256:layers=4 --json
    """
    from dataclasses import asdict

    import msgspec

    from flopwatch.explain.request import Profile, make_request
    from flopwatch.report.console import print_sheets
    from flopwatch.report.profile import as_dict, list_sentences, list_sheets
    from flopwatch.session import call

    request = make_request(**given)
    click.echo(f"{request.steps} steps of {request.model} with the profiler, in turns with as many "
               "without", err=True)  # fmt: skip
    content = call("flopwatch.explain.profile:profile", {"request": asdict(request)},
                   device=device, threads=threads)  # fmt: skip
    found = msgspec.convert(content, Profile)
    if as_json:
        click.echo(json.dumps(as_dict(found)))
    else:
        print_sheets(list_sheets(found))
        click.echo("\n".join(["", *list_sentences(found)]))
    if request.trace:
        click.echo(f"wrote {request.trace}; open it in https://ui.perfetto.dev", err=True)


@cli.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--batch", type=click.IntRange(min=1), default=4, show_default=True,
              help="Texts in a step.")  # fmt: skip
@click.option("--context", type=click.IntRange(min=2), default=128, show_default=True,
              help="Tokens of a text.")  # fmt: skip
@click.option("--precision", type=click.Choice(["fp32", "bf16-autocast", "fp16-autocast", "bf16"]),
              default="fp32", show_default=True)  # fmt: skip
@click.option("--attention", type=click.Choice(["sdpa", "plain"]), default="sdpa",
              show_default=True,
              help="sdpa: torch's fused one. plain: the scores of all pairs of tokens are kept."
              )  # fmt: skip
@click.option("--optimizer", type=click.Choice(["adamw", "adamw-unfused", "sgd"]),
              default="adamw", show_default=True)  # fmt: skip
@click.option("--checkpointing", "checkpointed", is_flag=True,
              help="Blocks are computed again in the backward pass.")  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="Where it would run; it need not be here.")  # fmt: skip
@click.option("--fit", callback=_size, metavar="SIZE",
              help="The memory that it must fit into, e.g. 24G.  [default: 90 % of what is free]"
              )  # fmt: skip
@click.option("--largest", type=click.Choice(["batch", "context"]),
              help="Print only the largest that fits; 0: none does.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def memory(
    models: tuple[str, ...], fit: int | None, largest: Any, as_json: bool, **given: Any
) -> None:
    """Foretell what training a MODEL needs in memory, and what would fit. Nothing is run.

    \b
    flopwatch memory small
    flopwatch memory large --context 1024 --attention plain --fit 24G
    flopwatch memory small medium large xl 2.7B
    flopwatch memory xl --checkpointing --device cuda --fit 80G --largest batch
    flopwatch memory qwen2:hidden_size=896:layers=24:heads=14 --precision bf16-autocast
    """
    from flopwatch.explain.capacity import ask, find_room_bytes
    from flopwatch.models.footprint import Plan
    from flopwatch.report.console import print_sheets
    from flopwatch.report.memory import as_dict, list_largest, list_sentences, list_sheets

    plan = Plan(**given)
    answers = ask(models, plan, find_room_bytes(fit, plan))
    if as_json:
        click.echo(json.dumps([as_dict(answer) for answer in answers]))
    elif largest is not None:
        click.echo("\n".join(list_largest(answers, largest)))
    else:
        print_sheets(list_sheets(answers))
        for sentence in list_sentences(answers):
            click.echo(sentence)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(as_json: bool) -> None:
    """Say what this machine is, what makes its timings unsteady, and what to change.

    \b
    flopwatch doctor
    flopwatch doctor --json > machine.json
    """
    from dataclasses import asdict

    from flopwatch.doctor import diagnose, measure_jitter
    from flopwatch.session import read_environment

    jitter = measure_jitter()  # while nothing of ours is running yet
    environment = read_environment()
    diagnosis = diagnose(environment, jitter)
    if as_json:
        advice = [asdict(one) for one in diagnosis.advice]
        content = {"environment": environment, "jitter": asdict(jitter), "advice": advice}
        click.echo(json.dumps(content))
        return
    for title, rows in diagnosis.facts:
        click.echo(click.style(title, bold=True))
        for name, value in rows:
            click.echo(f"  {name:26} {value}")
    click.echo(click.style("Advice", bold=True))
    for one in diagnosis.advice:
        mark = click.style(f"{one.severity:5}", fg=SEVERITY_COLOURS[one.severity])
        click.echo(
            f"  {mark} {one.topic}: {one.finding}" + (f" {one.action}" if one.action else "")
        )


SEVERITY_COLOURS = {"good": "green", "note": "blue", "warn": "yellow"}


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def report(files: tuple[Path, ...], out: Path) -> None:
    """Write the results in FILES as one self-contained HTML page.

    \b
    flopwatch report results/*.jsonl -o report.html
    """
    from flopwatch.report.page import render_page

    page = render_page(_read_records(files))
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise FlopwatchError(
            f"{out} cannot be written ({error.strerror}); choose another"
        ) from None
    click.echo(f"wrote {out}", err=True)


def _make_options(**given: Any) -> Options:
    from flopwatch.session import Options
    from flopwatch.settings import QUICK, Settings

    defaults = QUICK if given["quick"] else Settings()
    return Options(
        suite=given["suite"],
        settings=Settings(
            cache=given["cache"],
            allocator=given["allocator"],
            precision=given["precision"] or defaults.precision,
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
        quick=given["quick"],
        preset=given["preset"],
        budget_s=given["budget"],
        out=given["out"],
        rerun=given["rerun"],
        force=given["force"],
        skip_corrupt=given["skip_corrupt"],
    )


def _print_preview(preview: Preview, as_json: bool) -> None:
    from flopwatch.report.preview import as_dict, list_groups, list_remarks

    if as_json:
        click.echo(json.dumps(as_dict(preview)))
        return
    for line in list_groups(preview):
        click.echo(line)
    for remark in list_remarks(preview):
        click.echo(remark, err=True)


def _read_records(files: Sequence[Path], skip_corrupt: bool = False) -> list[Record]:
    from flopwatch.records.store import read

    contents = [read(file, skip_corrupt=skip_corrupt) for file in files]
    for warning in (warning for one in contents for warning in one.warnings):
        click.echo(f"flopwatch: {warning}", err=True)
    return [record for one in contents for record in one.records]


def _print_rows(records: Sequence[Record], as_json: bool) -> None:
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.console import print_rows
    from flopwatch.report.layouts import lay_out_plain

    rows = summarize(records)
    if as_json:
        click.echo(json.dumps(lay_out_plain(rows).content))
        return
    print_rows(rows)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit code."""
    sys.exit(_run_command(lambda: cli.main(args=arguments, standalone_mode=False)))


def _run_command(command: Callable[[], Any]) -> int:
    try:
        command()
    except FlopwatchError as error:
        click.echo(f"flopwatch: {error}", err=True)
        return 2
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("flopwatch: interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough; Python would complain once more
        # when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as if by SIGPIPE
    return 0
