"""Explain: where the time goes, in measured results and in traces of torch.profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.cli.options import print_json, print_remark, read_records
from flopwatch.cli.out_files import check_out, write_out
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row
    from flopwatch.records.record import Record
    from flopwatch.traces.explained_trace import ExplainedTrace

BAR_BYTES = 8 * 2**20
"""Files from which on a bar shows how much has been read."""

TRACE_FOOTER = "Times are those of the trace; the profiler itself makes the host slower."
NOTHING_TO_EXPLAIN = (
    "nothing to explain: no case was measured{}; measure some with: flopwatch run steps --quick"
)


@click.command(cls=Command)
@click.argument("results", nargs=-1, required=True, type=options.RESULTS,
                metavar="RESULTS|TRACES...")  # fmt: skip
@options.where
@options.most("cases of a table; of a trace, kernels and steps (--json has all).")
@click.option("--roofline", is_flag=True,
              help="Also compare phases and regions with their limits.")  # fmt: skip
@click.option("--compare", is_flag=True,
              help="Compare two traces that are of different ranks, OLD and NEW.")  # fmt: skip
@options.out("Of traces: a page (.html) or a plot (.png, .svg, .pdf, .json).")
@options.skip_corrupt
@options.quiet
@options.as_json
@click.pass_context
def explain(
    context: click.Context,
    /,
    results: tuple[Path, ...],
    where: str | None,
    most: int,
    roofline: bool,
    compare: bool,
    out: Path | None,
    skip_corrupt: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Break the measured time down, or its change between two files.

    The rows add up to the measured time. Matmuls are compared with the peak that `flopwatch peaks`
    has measured, memory traffic with its bandwidth; ranks and the optimizer are measured; what is
    not explained has its own row. Two files, OLD and NEW: which rows changed.

    TRACES are what torch.profiler writes: one, those of several ranks (or their folder), or two to
    compare. Their rows add up to the steps: kinds of kernels, exposed communication, copies, gaps.

    \b
    flopwatch explain results/steps.jsonl
    flopwatch explain results/training.jsonl --where "variant = 'full'" --roofline
    flopwatch explain old.jsonl new.jsonl
    flopwatch explain results/steps.jsonl --json | jq '.[].rows[] | [.name, .share]'
    flopwatch explain trace.json.gz
    flopwatch explain traces/ -o ranks.html
    flopwatch explain old.json.gz new.json.gz
    """
    options.refuse_two_lengths(context)
    from flopwatch.traces.trace_files import is_trace

    kinds = {is_trace(file) for file in results}
    if len(kinds) > 1:
        raise click.UsageError("these are results and traces; explain one kind at a time")
    if kinds == {True}:
        options.refuse_idle(
            context,
            "a trace has no cases and no lines",
            *("results", "most", "compare", "out", "quiet", "as_json"),
        )
        _explain_traces(results, most, compare, out, quiet, as_json)
        return
    options.refuse_idle(
        context,
        "this is for traces; `flopwatch plot` and `flopwatch report` draw results, and two files "
        "are compared as they are",
        *("results", "where", "most", "roofline", "skip_corrupt", "quiet", "as_json"),
    )
    if len(results) > 2:
        raise click.UsageError(
            f"explain takes one file or two, an old and a new one, and got {len(results)}"
        )
    if len(results) == 2 and roofline:
        raise click.UsageError("--roofline is for one file; explain the new one by itself")
    if quiet and (len(results) == 2 or roofline):
        raise click.UsageError("--quiet is for the breakdown of one file; leave it out")
    sides = [_select(read_records([file], skip_corrupt), where) for file in results]
    if len(sides) == 2:
        _explain_change(sides, most, as_json)
    else:
        _explain(sides[0], most, roofline, quiet, as_json)


def _select(records: Sequence[Record], where: str | None) -> list[Row]:
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.columns import list_columns
    from flopwatch.output.selection import select_rows

    rows = summarize(records)
    chosen = select_rows(rows, list_columns(rows), where) if where is not None else rows
    measured = [row for row in chosen if row.total_ns is not None]
    if not measured:
        raise UsageError(NOTHING_TO_EXPLAIN.format(f" for which {where!r} holds" if where else ""))
    return measured


def _explain(rows: Sequence[Row], most: int, roofline: bool, quiet: bool, as_json: bool) -> None:
    from flopwatch.output.breakdown_tables import (
        as_dict,
        explain_rows,
        make_breakdown_sheets,
        make_roof_sheets,
    )
    from flopwatch.output.job_answers import answer_breakdowns

    explained = explain_rows(rows)
    roofs = make_roof_sheets(rows, most) if roofline and not as_json else []
    options.print_found(
        as_json,
        [as_dict(one) for one in explained] if as_json else None,
        [] if as_json or quiet else [*make_breakdown_sheets(rows, most), *roofs],
        answer_breakdowns(explained),
        quiet=quiet,
    )
    if as_json:
        return
    if roofline and not roofs:
        print_remark("flopwatch: no phase has FLOPs, bytes and limits, so there is no roofline")


def _explain_change(sides: Sequence[Sequence[Row]], most: int, as_json: bool) -> None:
    from flopwatch.analysis.step_breakdown import find_moved
    from flopwatch.output.breakdown_tables import (
        describe_moved,
        make_moved_sheets,
        moved_as_dict,
    )
    from flopwatch.output.console import print_remarks, print_sheets

    moved = find_moved(*([row.record for row in rows] for rows in sides))
    if not moved.movements:
        raise UsageError(
            "no case was measured in both files; `flopwatch show` lists what each of them has"
        )
    if as_json:
        print_json(moved_as_dict(moved))
        return
    print_sheets(make_moved_sheets(moved, most))
    print_remarks(describe_moved(moved))


# Traces


def _explain_traces(
    given: Sequence[Path], most: int, compare: bool, out: Path | None, quiet: bool, as_json: bool
) -> None:
    from flopwatch.output import trace_tables as tables
    from flopwatch.output.plots.trace_plot import make_comparison_plot, make_trace_plot
    from flopwatch.output.trace_json import comparison_as_dict, explained_as_dict
    from flopwatch.traces.rank_traces import compare_ranks, is_one_job
    from flopwatch.traces.trace_comparison import compare_traces
    from flopwatch.traces.trace_files import list_traces

    files = [file for path in given for file in list_traces(path)]
    if compare and len(files) != 2:
        raise click.UsageError(f"--compare takes two traces, OLD and NEW, and got {len(files)}")
    if out is not None:
        check_out(out)
    traces = _read_traces(files)
    if len(traces) == 1:
        found = traces[0]
        content = explained_as_dict(traces, None) if as_json else None
        answer, sheets = tables.answer_trace(found), tables.list_sheets(found, most)
        plot = make_trace_plot(traces)
    elif compare or (len(traces) == 2 and len(given) == 2 and not is_one_job(traces)):
        moved = compare_traces(*traces)
        content = comparison_as_dict(moved) if as_json else None
        answer = tables.answer_comparison(moved)
        sheets = tables.list_comparison_sheets(moved, most)
        plot = make_comparison_plot(moved)
    else:
        ranks = compare_ranks(traces)
        content = explained_as_dict(traces, ranks) if as_json else None
        answer, sheets = tables.answer_ranks(ranks), tables.list_rank_sheets(ranks, most)
        plot = make_trace_plot([share.trace for share in ranks.ranks])
    options.print_found(as_json, content, sheets, answer, quiet=quiet)
    if as_json or quiet:
        for remark in tables.list_remarks(traces):
            print_remark(f"flopwatch: {remark}")
    if out is not None:
        write_out(out, "flopwatch explain", answer, sheets, [plot], TRACE_FOOTER)


def _read_traces(files: Sequence[Path]) -> list[ExplainedTrace]:
    from flopwatch.traces.explained_trace import explain_trace

    with _showing_progress(files) as report:
        return [explain_trace(file, report(number)) for number, file in enumerate(files)]


@contextmanager
def _showing_progress(
    files: Sequence[Path],
) -> Iterator[Callable[[int], Callable[[int], object]]]:
    """For the number of a file, what takes how much of it was read; a bar shows it in a terminal,
    where that takes long enough to be seen."""
    from flopwatch.output.console import open_stderr

    console = open_stderr()
    sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
    if not console.is_terminal or sum(sizes) < BAR_BYTES:
        yield lambda _: lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=sum(sizes))

        def report(number: int) -> Callable[[int], object]:
            before = sum(sizes[:number])
            return lambda read: progress.update(task, completed=before + read)

        yield report
