"""Look at results: tables, the breakdown of their time, plots, a page, SQL."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.cli.options import (
    print_json,
    print_lines,
    print_remark,
    read_records,
    refuse_idle,
)
from flopwatch.errors import UsageError
from flopwatch.output.layouts import AS_PUBLISHED, LAYOUTS

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row
    from flopwatch.output.plots import Plot
    from flopwatch.output.table_request import Answer
    from flopwatch.records.record import Record

TERMINAL = "terminal"
FORMATS = (TERMINAL, "markdown", "csv", "latex", "json")
output_format = options.format_option(
    FORMATS, "CSV and JSON have raw values, with units in the names of columns.",
    default=TERMINAL, show_default=True,
)  # fmt: skip
EVERYTHING_PUBLISHED = (Path("published"),)
"""In place of results: which published benchmarks there are."""


@click.command(cls=Command)
@options.results
@click.option("--layout", type=click.Choice([*LAYOUTS, AS_PUBLISHED]), default="plain",
              show_default=True,
              help="plain: the usual tables. published: exactly what the benchmark that the suite "
                   "repeats prints. Others: the layout of one benchmark, and the usual tables."
              )  # fmt: skip
@options.verbose
@options.quiet
@options.columns
@options.where
@click.option("--sort", metavar="A,-B", type=options.ColumnNames(),
              help="Sort by these columns; a minus means descending.")  # fmt: skip
@click.option("--pivot", metavar="row=A,col=B,value=C",
              help="Print a row for each A and a column for each B; one table for each value of "
                   "other axes.")  # fmt: skip
@click.option("--warmup", is_flag=True,
              help="Show what the first steps cost, and how many to discard.")  # fmt: skip
@output_format
@options.skip_corrupt
@options.as_json
@click.pass_context
def show(
    context: click.Context,
    /,
    results: tuple[Path, ...],
    verbose: bool,
    quiet: bool,
    warmup: bool,
    form: str,
    skip_corrupt: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Show RESULTS: the answer, and a narrow table.

    The newest record of every case is shown. RESULTS are files, or published:NAME, which every
    command reads; `flopwatch show published` lists the published benchmarks.

    \b
    flopwatch show results/activations.jsonl
    flopwatch show results/activations.jsonl -v
    flopwatch show results/dyad.jsonl --where "tokens >= 1024 and variant like 'dyad%'"
    flopwatch show results/dyad.jsonl --columns shape,variant,total_ns,speedup --sort -speedup
    flopwatch show results/dyad.jsonl --pivot row=variant,col=tokens,value=speedup
    flopwatch show results/*.jsonl --format csv > cases.csv
    flopwatch show results/training.jsonl --layout mosaic --format markdown
    flopwatch show results/steps.jsonl --warmup
    flopwatch show results/activations.jsonl --json | jq '.[].speedup.median'
    flopwatch show published
    flopwatch show published:dyad --layout published
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.console import print_remarks, print_sheets
    from flopwatch.output.table_request import WRITERS, Request, answer
    from flopwatch.records.published import find_sources

    options.refuse_two_lengths(context)
    form = choose_format(form, as_json)
    if results == EVERYTHING_PUBLISHED:
        refuse_idle(context, "`show published` is a list", "results", "form", "as_json")
        list_published(form)
        return
    if warmup:
        if form not in (TERMINAL, "json"):
            raise click.UsageError(f"--warmup has no format {form}; take --json, or leave it out")
        refuse_idle(
            context, "--warmup has a table of its own",
            *("results", "warmup", "form", "as_json", "skip_corrupt"),
        )  # fmt: skip
    records = read_records(results, skip_corrupt)
    rows = summarize(records)
    if warmup:
        show_warmup(rows, form)
        return
    if asked["columns"] == "help":
        from flopwatch.output.columns import describe_columns

        print_values(*describe_columns(rows), form)
        return
    found = answer(rows, Request(**asked), form)
    sources = [] if quiet else [r for one in find_sources(records) for r in one.list_remarks()]
    if form == TERMINAL and found.rows is not None:
        _print_plain(found, verbose=verbose, quiet=quiet, is_sorted=asked["sort"] is not None)
        print_remarks(sources)
        return
    text = "" if form == TERMINAL else WRITERS[form](found)
    sheets = found.make_sheets() if form == TERMINAL else []
    for remark in found.remarks:
        print_remark(f"flopwatch: {remark}")
    for line in found.lines if form == TERMINAL else ():
        print_lines(line)
    click.echo(text, nl=False)
    print_sheets(sheets)
    for remark in sources:
        print_remark(f"flopwatch: {remark}")


def _print_plain(found: Answer, *, verbose: bool, quiet: bool, is_sorted: bool) -> None:
    """The answer first, or all tables."""
    from flopwatch.output.console import print_answers, print_sheets

    for remark in () if quiet else found.remarks:
        print_remark(f"flopwatch: {remark}")
    if verbose:
        print_sheets(found.make_sheets())
    elif found.rows:
        print_answers(found.rows, is_quiet=quiet, is_sorted=is_sorted)


def list_published(form: str) -> None:
    from flopwatch.records.published import PUBLICATIONS, load

    listed = [
        {**each.describe(), "records": len(load(each.name))} for each in PUBLICATIONS.values()
    ]
    some = ["name", "what", "source", "year", "records", "hardware"]
    columns = list(listed[0]) if form == "json" else some
    print_values(columns, [[row[column] for column in columns] for row in listed], form)


def show_warmup(rows: Sequence[Row], form: str) -> None:
    from flopwatch.output.console import print_remarks, print_sheets
    from flopwatch.output.warmup_tables import answer_warmup

    found = answer_warmup(rows)
    if not found.content:
        print_remark("no records")
    if form == "json":
        print_json(found.content)
        return
    if found.answer:
        print_remarks([found.answer])
    print_sheets(found.sheets)


@click.command(cls=Command)
@click.argument("sql")
@options.any_results
@output_format
@click.option("--timeout", "timeout_s", type=options.Word(options.read_duration), metavar="TIME",
              default="5m", show_default=True,
              help="The time limit. A query that takes longer is ended."
              )  # fmt: skip
@options.memory_limit("For DuckDB, which may write four times as much to a temporary folder.  "
                      "[default: 4G, or half of what is free]")  # fmt: skip
@options.skip_corrupt
@options.as_json
def query(
    sql: str,
    results: tuple[Path, ...],
    form: str,
    skip_corrupt: bool,
    as_json: bool,
    timeout_s: float,
    memory_limit_bytes: int | None,
) -> None:
    """Query records in SQL, over RESULTS or all of results/.

    Views: `cases` has one row a case and all its columns, `records` one a record, `samples` one a
    sample and phase, `ranks` one a sample and rank of a job, `regions` one a sample and region,
    `curves` one a point of a curve, `steps` one a step and rank of a monitored run.

    \b
    flopwatch query "SELECT suite, variant, count(*) FROM records GROUP BY ALL"
    flopwatch query "SELECT variant, phase, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL"
    flopwatch query "SELECT params->>'dtype', status, message FROM records WHERE status <> 'ok'"
    flopwatch query "DESCRIBE samples"
    flopwatch query "SELECT model, max(mfu) FROM cases GROUP BY ALL" published:mosaic
    """
    from flopwatch.output.selection import query_results
    from flopwatch.records.query import find_memory_limit
    from flopwatch.runner.session import RESULTS as FOLDER
    from flopwatch.worker.limits import limiting_memory

    form = choose_format(form, as_json)
    paths = list(results) or sorted(FOLDER.glob("*.jsonl"))
    if not paths:
        raise click.UsageError(f"no results in {FOLDER}/ here; name a file, or run a suite first")
    limit_bytes = memory_limit_bytes or find_memory_limit()
    # DuckDB does not count strings that it is computing, nor what the answer takes in Python.
    with ending_as_by_ctrl_c(), limiting_memory(2 * limit_bytes + SPARE_BYTES):
        result = query_results(
            paths,
            sql,
            skip_corrupt=skip_corrupt,
            timeout_s=timeout_s,
            memory_limit_bytes=limit_bytes,
        )
    for warning in result.warnings:
        print_remark(f"flopwatch: {warning}")
    print_values(result.columns, result.rows, form)


SPARE_BYTES = 2**30
"""For the stacks of DuckDB's threads."""


@contextmanager
def ending_as_by_ctrl_c() -> Iterator[None]:
    """Meanwhile SIGTERM and SIGHUP end the command as Ctrl-C does, so that it cleans up."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if is_main else ()  # others may not set handlers
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def print_values(columns: Sequence[str], rows: Sequence[Sequence[Any]], form: str) -> None:
    """A table of values of which nothing is known."""
    from flopwatch.output.console import print_table
    from flopwatch.output.formats import write_result

    if form == TERMINAL:
        print_table(columns, rows)
    else:
        click.echo(write_result(columns, rows, form), nl=False)


def choose_format(form: str, as_json: bool) -> str:
    if as_json and form not in (TERMINAL, "json"):
        raise click.UsageError(f"--json and --format {form} are two formats; take one")
    return "json" if as_json else form


def print_records(
    records: Sequence[Record],
    *,
    more: str,
    verbose: bool = False,
    quiet: bool = False,
    columns: str | None = None,
    as_json: bool = False,
) -> None:
    """What a run has found. `more` is the command that shows the rest."""
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.case_tables import make_all_sheets
    from flopwatch.output.console import print_answers, print_sheets
    from flopwatch.output.layouts import lay_out_plain
    from flopwatch.output.table_request import Request, answer

    rows = summarize(records)
    if as_json:
        print_json(lay_out_plain(rows).content)
    elif columns is not None:
        print_sheets(answer(rows, Request(columns=columns), TERMINAL).make_sheets())
    elif verbose:
        print_sheets(make_all_sheets(rows))
    else:
        print_answers(rows, more=more, is_quiet=quiet)


@click.command(cls=Command)
@options.results
@options.out("-: standard output. An earlier report is replaced; other files are not.",
             or_stdout=True, required=True)  # fmt: skip
@click.option("--title", default="flopwatch report", show_default=True, help="Title of the page.")
@options.skip_corrupt
def report(results: tuple[Path, ...], out: Path, title: str, skip_corrupt: bool) -> None:
    """Write RESULTS as one self-contained HTML page.

    \b
    flopwatch report results/*.jsonl -o report.html
    flopwatch report published:dyad results/dyad.jsonl -o dyad.html --title "DYAD, theirs and ours"
    flopwatch report results/steps.jsonl -o - > steps.html
    """
    from flopwatch.output.page import is_report, render_page
    from flopwatch.records.file_safety import replace_file, require_replaceable

    is_stdout = str(out) == "-"
    if not is_stdout:  # a slip of the keyboard must not replace results by their report
        require_replaceable(out, is_report, "a report of flopwatch")
    page = render_page(read_records(results, skip_corrupt), title)
    if is_stdout:
        click.echo(page.encode(), nl=False)  # the page says that it is UTF-8
        return
    replace_file(out, page.encode())
    print_remark(f"wrote {out}")


@click.command(cls=Command)
@options.results
@click.option("--plot", "name", metavar="NAME", type=options.Word(list_known=options.list_plots),
              help="The plot to draw; --list has the names.  [default: the most informative of "
                   "each table]")  # fmt: skip
@options.out("Its name ends in .png, .svg, .pdf, or .json (Vega-Lite); several plots are "
             "numbered.  [default: SUITE-NAME.png]")  # fmt: skip
@options.most("plots.")
@options.only_list("what can be drawn from these results, and what each plot needs.")
@options.skip_corrupt
@options.as_json
def plot(
    results: tuple[Path, ...],
    name: str | None,
    out: Path | None,
    most: int,
    only_list: bool,
    skip_corrupt: bool,
    as_json: bool,
) -> None:
    """Plot RESULTS as PNG, SVG, PDF or Vega-Lite specification.

    \b
    flopwatch plot results/dyad.jsonl -o dyad.png
    flopwatch plot results/steps.jsonl --plot parts -o parts.pdf
    flopwatch plot published:mosaic -o mosaic.svg
    flopwatch plot results/steps.jsonl --plot parts -o parts.vl.json
    flopwatch plot results/switchback.jsonl --list
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.tables import divide

    if only_list and (name is not None or out is not None):
        raise click.UsageError("--list draws nothing; leave --plot and --out out")
    tables = divide(summarize(read_records(results, skip_corrupt)))
    if only_list:
        _list_kinds(tables, as_json)
        return
    from flopwatch.output.plots.plot_files import draw_files

    plots = _choose(tables, name, most)
    files = draw_files(plots, out)
    for file, drawn in zip(files, plots, strict=True):
        print_remark(f"wrote {file}: {drawn.title}, {drawn.subject}")
    if as_json:
        content = [
            {"file": str(file), "name": p.name, "title": p.title, "subject": p.subject}
            for file, p in zip(files, plots, strict=True)
        ]
        click.echo(json.dumps(content))


def _choose(tables: Sequence[Sequence[Row]], name: str | None, most: int) -> list[Plot]:
    from flopwatch.output.plots.plot_catalog import choose_first, describe_missing, make_plots

    if not tables:
        raise UsageError("there are no records to draw; measure some with: flopwatch run")
    found = choose_first(tables) if name is None else make_plots(name, tables)
    plots = list(islice(found, most))
    if not plots:
        raise UsageError(
            "these results have nothing to draw; --list says what plots need"
            if name is None
            else describe_missing(name)
        )
    if next(found, None) is not None:
        print_remark(f"flopwatch: only the first {most} plots; --most draws more")
    return plots


def _list_kinds(tables: Sequence[Sequence[Row]], as_json: bool) -> None:
    from flopwatch.output.console import print_table
    from flopwatch.output.plots.plot_catalog import KINDS, make_plots

    counts = {name: sum(1 for _ in make_plots(name, tables)) for name in KINDS}
    if as_json:
        content = [
            {"name": n, "plots": counts[n], "shows": k.shows, "needs": k.needs, "run": k.run}
            for n, k in KINDS.items()
        ]
        click.echo(json.dumps(content))
        return
    rows = [(n, counts[n] or "none", k.shows, k.needs) for n, k in KINDS.items()]
    print_table(["plot", "from these", "shows", "needs"], rows)
