"""Results: what was measured, as tables, answers and pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.commands import options
from flopwatch.errors import FlopwatchError
from flopwatch.report.layouts import LAYOUTS

if TYPE_CHECKING:
    from flopwatch.records.record import Record


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
@options.skip_corrupt
@options.as_json
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

    rows = summarize(read_records(results, skip_corrupt))
    printout = LAYOUTS[layout](rows)
    for remark in printout.remarks:
        click.echo(f"flopwatch: {remark}", err=True)
    if as_json:
        click.echo(json.dumps(printout.content))
        return
    for line in printout.lines:
        click.echo(line)
    print_rows(rows)


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
        click.echo("no records", err=True)
    for line in [json.dumps(printout.content)] if as_json else printout.lines:
        click.echo(line)


@click.command()
@click.argument("sql")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@options.skip_corrupt
@options.as_json
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


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def report(files: tuple[Path, ...], out: Path) -> None:
    """Write the results in FILES as one self-contained HTML page.

    \b
    flopwatch report results/*.jsonl -o report.html
    """
    from flopwatch.report.page import render_page

    page = render_page(read_records(files))
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise FlopwatchError(
            f"{out} cannot be written ({error.strerror}); choose another"
        ) from None
    click.echo(f"wrote {out}", err=True)


def read_records(files: Sequence[Path], skip_corrupt: bool = False) -> list[Record]:
    from flopwatch.records.store import read

    contents = [read(file, skip_corrupt=skip_corrupt) for file in files]
    for warning in (warning for one in contents for warning in one.warnings):
        click.echo(f"flopwatch: {warning}", err=True)
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
