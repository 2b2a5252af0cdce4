"""Comparisons: verdicts on variants and on runs, and one's own results beside published ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.commands import options
from flopwatch.commands.printing import tell
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
    _refuse_idle_fields(fail_if_slower, despite)
    if beside is not None:
        sys.exit(_compare_with_published(results, beside, skip_corrupt, as_json))
    from flopwatch.analysis.statistics import THRESHOLD

    size = fail_if_slower or threshold or THRESHOLD
    sides = [read_records([file], skip_corrupt) for file in results]
    _refuse_unknown_fields(sides, despite)
    judgement = _judge(sides, size, relative)
    is_gate, is_between_runs = fail_if_slower is not None, len(sides) == 2
    _print(judgement, is_between_runs=is_between_runs, as_json=as_json)
    if _is_nothing(judgement, is_gate):
        sys.exit(_report_nothing(judgement, is_between_runs))
    sys.exit(_decide(judgement, despite) if is_gate else 0)


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


def _refuse_idle_fields(fail_if_slower: float | None, despite: Sequence[str]) -> None:
    if despite and fail_if_slower is None:
        raise click.UsageError(
            "--despite says what --fail-if-slower may count, and has no effect without it; add "
            "--fail-if-slower 3%, or leave --despite out"
        )


def _refuse_unknown_fields(sides: Sequence[Sequence[Record]], despite: Sequence[str]) -> None:
    """A slip of the keyboard would excuse nothing, and nobody would know why the gate fails."""
    from flopwatch.analysis.unlike import find_near_fields, is_named, list_fields
    from flopwatch.errors import UsageError

    fields = list_fields(record for side in sides for record in side)
    for name in despite:
        if not any(is_named(each, [name]) for each in fields):
            near = find_near_fields(name, fields)
            meant = (
                f"did you mean {' or '.join(near)}?" if near else "such as torch.version, or all"
            )
            raise UsageError(f"--despite {name!r} is no field in which results can differ; {meant}")


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
    from flopwatch.report.console import print_remarks, print_sheets

    if as_json:
        click.echo(json.dumps(as_dict(judgement)))
        return
    print_sheets(make_compare_sheets(judgement, is_between_runs=is_between_runs))
    print_remarks(describe_judgement(judgement, is_between_runs=is_between_runs))


def _is_nothing(judgement: Judgement, is_gate: bool) -> bool:
    """Whether there is no verdict at all; for a gate, what is no longer measured is one."""
    return not judgement.comparisons and not (is_gate and judgement.broken)


def _report_nothing(judgement: Judgement, is_between_runs: bool) -> int:
    from flopwatch.report.compare import describe_nothing

    tell(f"flopwatch: {describe_nothing(judgement, is_between_runs=is_between_runs)}")
    return NOTHING


def _decide(judgement: Judgement, despite: Sequence[str]) -> int:
    """The gate's exit code; what it rests on is told."""
    from flopwatch.analysis.compare import excuse

    counted = excuse(judgement, despite)
    if not counted and not judgement.broken:
        tell(
            "flopwatch: nothing was comparable like for like; measure both sides alike, or name "
            "what may differ by --despite FIELD"
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
    tell(f"flopwatch: slower, or no longer measured: {worst}{more}")
    return REGRESSION


def _compare_with_published(
    results: Sequence[Path], beside: str, skip_corrupt: bool, as_json: bool
) -> int:
    """The exit code."""
    from flopwatch.analysis.beside import as_dict, put_beside
    from flopwatch.analysis.summary import summarize
    from flopwatch.records.published import load
    from flopwatch.report.beside import describe_beside, make_beside_sheets, suggest_case
    from flopwatch.report.console import print_remarks, print_sheets

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
        print_remarks(describe_beside(found))
    if all(one.missing is not None for one in found):
        tell(f"flopwatch: nothing was comparable; {suggest_case(found, name)}")
        return NOTHING
    return 0
