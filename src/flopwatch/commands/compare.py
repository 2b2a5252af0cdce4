"""Comparisons: verdicts on variants and on runs, and one's own results beside published ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.commands import options
from flopwatch.commands.results import read_records

if TYPE_CHECKING:
    from flopwatch.analysis.compare import Comparison, Judgement
    from flopwatch.records.record import Record

PUBLISHED = "published:"
REGRESSION, NOTHING = 1, 3
"""Exit codes."""


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--with", "beside", metavar="published:NAME",
              help="Beside these results, the published ones, as ratios; `flopwatch published` "
                   "lists them.")  # fmt: skip
@click.option("--threshold", callback=options.read_percentage, metavar="PERCENT",
              help="What is called faster or slower differs by at least this much.  [default: 3%]"
              )  # fmt: skip
@click.option(
    "--fail-if-slower",
    callback=options.read_percentage,
    metavar="PERCENT",
    help="The same, and exit with 1 if anything is slower, or is no longer measured.",
)
@click.option("--despite", multiple=True, metavar="FIELD",
              help="Let --fail-if-slower count also what differs in this field, such as "
                   "torch.version; may be repeated, and `all` is all.")  # fmt: skip
@click.option("--relative", is_flag=True,
              help="Of two results: compare each case's ratio to its baseline in the same rounds, "
                   "which the machine's speed does not change.")  # fmt: skip
@options.skip_corrupt
@options.as_json
def compare(
    results: tuple[Path, ...],
    beside: str | None,
    threshold: float | None,
    fail_if_slower: float | None,
    despite: tuple[str, ...],
    relative: bool,
    skip_corrupt: bool,
    as_json: bool,
) -> None:
    """Compare the variants in RESULTS with their baseline, or an OLD file with a NEW one.

    Verdicts: faster, slower, same (the interval lies within the threshold), unclear. What makes a
    comparison unfair (precision, threads, versions, ...) is named beside it: not like for like.

    Exit codes: 0 fine, 1 something is slower (with --fail-if-slower), 2 usage, 3 nothing was
    comparable.

    \b
    flopwatch compare results/dyad.jsonl
    flopwatch compare old.jsonl new.jsonl
    flopwatch compare old.jsonl new.jsonl --fail-if-slower 3%
    flopwatch compare results/switchback.jsonl --with published:switchback
    """
    _refuse_contradictions(results, beside, threshold, fail_if_slower, relative)
    if beside is not None:
        sys.exit(_compare_with_published(results, beside, skip_corrupt, as_json))
    from flopwatch.analysis.statistics import THRESHOLD

    size = fail_if_slower or threshold or THRESHOLD
    sides = [read_records([file], skip_corrupt) for file in results]
    judgement = _judge(sides, size, relative)
    _print(judgement, is_between_runs=len(sides) == 2, as_json=as_json)
    sys.exit(_decide(judgement, gated=fail_if_slower is not None, despite=despite))


def _refuse_contradictions(
    results: Sequence[Path],
    beside: str | None,
    threshold: float | None,
    fail_if_slower: float | None,
    relative: bool,
) -> None:
    if beside is None and len(results) > 2:
        raise click.UsageError(
            f"compare takes one file or two, an old and a new one, and got {len(results)}"
        )
    if threshold is not None and fail_if_slower is not None:
        raise click.UsageError("--fail-if-slower sets the threshold; leave --threshold out")
    if relative and (len(results) != 2 or beside):
        raise click.UsageError(
            "--relative is for an old and a new file; inside one, all is relative to the baseline"
        )
    if beside is not None and (fail_if_slower is not None or threshold is not None):
        raise click.UsageError(
            "--with compares with other machines, where there is no threshold; leave it out"
        )


def _judge(sides: Sequence[Sequence[Record]], size: float, relative: bool) -> Judgement:
    from flopwatch.analysis.compare import compare_runs, compare_variants
    from flopwatch.analysis.summary import summarize

    if len(sides) == 1:
        return compare_variants(summarize(sides[0]), size)
    return compare_runs(
        sides[0], sides[1], threshold=size, measure="relative" if relative else "time"
    )


def _print(judgement: Judgement, *, is_between_runs: bool, as_json: bool) -> None:
    from flopwatch.report.compare import as_dict, describe_judgement, make_compare_sheets
    from flopwatch.report.console import print_sheets

    if as_json:
        click.echo(json.dumps(as_dict(judgement)))
        return
    print_sheets(make_compare_sheets(judgement, is_between_runs=is_between_runs))
    for sentence in describe_judgement(judgement, is_between_runs=is_between_runs):
        click.echo(f"  {sentence}")


def _decide(judgement: Judgement, *, gated: bool, despite: Sequence[str]) -> int:
    """The exit code; what it rests on is told."""
    from flopwatch.analysis.compare import excuse

    if not judgement.comparisons and not judgement.broken:
        click.echo(
            "flopwatch: nothing was comparable: no case was measured on both sides", err=True
        )
        return NOTHING
    if not gated:
        return 0
    counted = excuse(judgement, despite)
    if not counted and not judgement.broken:
        click.echo(
            "flopwatch: nothing was comparable like for like; measure both sides alike, or name "
            "what may differ by --despite FIELD",
            err=True,
        )
        return NOTHING
    return _report_regressions(judgement, counted)


def _report_regressions(judgement: Judgement, counted: Sequence[Comparison]) -> int:
    from flopwatch.report.compare import name_case

    slower = [one.new for one in counted if one.verdict == "slower"]
    regressed = [*slower, *judgement.broken]
    if not regressed:
        return 0
    worst = ", ".join(name_case(record) for record in regressed[:3])
    more = f" and {len(regressed) - 3} more" if len(regressed) > 3 else ""
    click.echo(f"flopwatch: slower, or no longer measured: {worst}{more}", err=True)
    return REGRESSION


def _compare_with_published(
    results: Sequence[Path], beside: str, skip_corrupt: bool, as_json: bool
) -> int:
    """The exit code."""
    from flopwatch.analysis.beside import as_dict, put_beside
    from flopwatch.analysis.summary import summarize
    from flopwatch.records.published import load
    from flopwatch.report.beside import describe_beside, make_beside_sheets, suggest_case
    from flopwatch.report.console import print_sheets

    if not beside.startswith(PUBLISHED):
        raise click.UsageError(
            f"--with takes {PUBLISHED}NAME, such as {PUBLISHED}switchback, and got {beside!r}"
        )
    name = beside.removeprefix(PUBLISHED)
    published = summarize(load(name))
    found = put_beside(summarize(read_records(results, skip_corrupt)), published)
    if as_json:
        click.echo(json.dumps([as_dict(one) for one in found]))
    else:
        print_sheets(make_beside_sheets(found))
        for sentence in describe_beside(found):
            click.echo(f"  {sentence}")
    if all(one.missing is not None for one in found):
        click.echo(f"flopwatch: nothing was comparable; {suggest_case(found, name)}", err=True)
        return NOTHING
    return 0
