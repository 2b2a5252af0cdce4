"""Results: what was measured, as tables and answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwatch.commands import options
from flopwatch.commands.printing import say, tell
from flopwatch.report.layouts import LAYOUTS

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row
    from flopwatch.records.record import Record

TERMINAL = "terminal"
FORMATS = (TERMINAL, "markdown", "csv", "latex", "json")
output_format = click.option(
    "--format", "form", type=click.Choice(FORMATS), default=TERMINAL, show_default=True,
    help="CSV and JSON have raw values, with units in the names of columns.",
)  # fmt: skip


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@options.skip_corrupt
@options.as_json
def show(file: Path, skip_corrupt: bool, as_json: bool) -> None:
    """Summarise a results FILE: the newest record of every case.

    \b
    flopwatch show results/activations.jsonl
    flopwatch show results/activations.jsonl --json | jq '.[].speedup.median'
    """
    print_records(read_records([file], skip_corrupt), as_json)


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--layout", type=click.Choice(list(LAYOUTS)), default="plain", show_default=True,
              help="plain: the usual tables. Others first print what a published benchmark prints, "
                   "in its words.")  # fmt: skip
@click.option("--columns", metavar="A,B,C",
              help="One table with these columns; `--columns help` lists them.")  # fmt: skip
@click.option("--where", metavar="CONDITION",
              help="Only cases for which it holds: SQL, over the same columns.")  # fmt: skip
@click.option("--sort", metavar="A,-B", help="By these columns; a minus: descending.")
@click.option("--pivot", metavar="row=A,col=B,value=C",
              help="A row for each A, a column for each B; a table for each value of what else "
                   "differs.")  # fmt: skip
@output_format
@options.skip_corrupt
@options.as_json
def table(
    results: tuple[Path, ...], form: str, skip_corrupt: bool, as_json: bool, **asked: Any
) -> None:
    """Show RESULTS as tables: the usual ones, ones of your own, or as others have published theirs.

    \b
    flopwatch table results/dyad.jsonl --where "tokens >= 1024 and variant like 'dyad%'"
    flopwatch table results/dyad.jsonl --columns shape,variant,total_ns,speedup --sort -speedup
    flopwatch table results/dyad.jsonl --pivot row=variant,col=tokens,value=speedup
    flopwatch table results/*.jsonl --format csv > cases.csv
    flopwatch table results/dyad.jsonl --format latex
    flopwatch table results/training.jsonl --layout mosaic --format csv
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.console import print_sheets
    from flopwatch.report.request import WRITERS, Request, answer

    form = choose_format(form, as_json)
    rows = summarize(read_records(results, skip_corrupt))
    if asked["columns"] == "help":
        print_fields(rows)
        return
    found = answer(rows, Request(**asked), form)
    text = "" if form == TERMINAL else WRITERS[form](found)
    sheets = found.make_sheets() if form == TERMINAL else []
    for remark in found.remarks:
        tell(f"flopwatch: {remark}")
    for line in found.lines if form == TERMINAL else ():
        say(line)
    click.echo(text, nl=False)
    print_sheets(sheets)


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.skip_corrupt
@options.as_json
def warmup(results: tuple[Path, ...], skip_corrupt: bool, as_json: bool) -> None:
    """Say what the first steps in RESULTS paid for, and how many to leave out.

    \b
    flopwatch warmup results/steps.jsonl
    flopwatch warmup results/steps.jsonl --json | jq '.[].enough'
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.warmup import lay_out

    printout = lay_out(summarize(read_records(results, skip_corrupt)))
    if not printout.content:
        tell("no records")
    for line in [json.dumps(printout.content)] if as_json else printout.lines:
        say(line)


@click.command()
@click.argument("sql")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@output_format
@options.skip_corrupt
@options.as_json
def query(sql: str, files: tuple[Path, ...], form: str, skip_corrupt: bool, as_json: bool) -> None:
    """Ask records anything, in SQL (DuckDB), over FILES or all of results/.

    Views: `records` has one row a record, `samples` one a sample and phase, `ranks` one a sample
    and rank of a job, `regions` one a sample and region, `curves` one a point of a curve.

    \b
    flopwatch query "SELECT suite, variant, count(*) FROM records GROUP BY ALL"
    flopwatch query "SELECT variant, phase, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL"
    flopwatch query "SELECT params->>'dtype', status, reason FROM records WHERE status <> 'ok'"
    flopwatch query "DESCRIBE samples"
    """
    from flopwatch.records.query import query as ask
    from flopwatch.report.console import print_table
    from flopwatch.report.writers import write_result
    from flopwatch.session import RESULTS

    form = choose_format(form, as_json)
    paths = list(files) or sorted(RESULTS.glob("*.jsonl"))
    if not paths:
        raise click.UsageError(f"no results in {RESULTS}/ here; name a file, or run a suite first")
    result = ask(paths, sql, skip_corrupt=skip_corrupt)
    for warning in result.warnings:
        tell(f"flopwatch: {warning}")
    if form == TERMINAL:
        print_table(result.columns, result.rows)
    else:
        click.echo(write_result(result.columns, result.rows, form), nl=False)


def choose_format(form: str, as_json: bool) -> str:
    if as_json and form not in (TERMINAL, "json"):
        raise click.UsageError(f"--json and --format {form} are two formats; take one")
    return "json" if as_json else form


def print_fields(rows: Sequence[Row]) -> None:
    from flopwatch.report.console import print_table
    from flopwatch.report.frame import make_frame

    print_table(
        ["column", "what it is"], [[each.name, each.about] for each in make_frame(rows).values()]
    )


def read_records(files: Sequence[Path], skip_corrupt: bool = False) -> list[Record]:
    from flopwatch.records.store import read

    contents = [read(file, skip_corrupt=skip_corrupt) for file in files]
    for warning in (warning for one in contents for warning in one.warnings):
        tell(f"flopwatch: {warning}")
    return [record for one in contents for record in one.records]


def print_records(records: Sequence[Record], as_json: bool) -> None:
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.console import print_rows
    from flopwatch.report.layouts import lay_out_plain

    rows = summarize(records)
    if as_json:
        click.echo(json.dumps(lay_out_plain(rows).content))
        return
    print_rows(rows)
