"""Comparisons: verdicts on variants and on runs, and one's own results beside published ones.

What to doubt about results, and from where on a variant pays.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.cli import options
from flopwatch.cli.options import say, tell
from flopwatch.cli.results import read_records
from flopwatch.output.units import printable

if TYPE_CHECKING:
    from flopwatch.analysis.verdicts import Comparison, Judgement
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
    from flopwatch.analysis.comparable import find_near_fields, is_named, list_fields
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
    from flopwatch.analysis.summary import summarize
    from flopwatch.analysis.verdicts import compare_runs, compare_variants

    if len(sides) == 1:
        return compare_variants(summarize(sides[0]), size)
    return compare_runs(
        sides[0], sides[1], threshold=size, measure="relative" if relative else "time"
    )


def _print(judgement: Judgement, *, is_between_runs: bool, as_json: bool) -> None:
    from flopwatch.output.compare_tables import as_dict, describe_judgement, make_compare_sheets
    from flopwatch.output.console import print_remarks, print_sheets

    if as_json:
        click.echo(json.dumps(as_dict(judgement)))
        return
    print_sheets(make_compare_sheets(judgement, is_between_runs=is_between_runs))
    print_remarks(describe_judgement(judgement, is_between_runs=is_between_runs))


def _is_nothing(judgement: Judgement, is_gate: bool) -> bool:
    """Whether there is no verdict at all; for a gate, what is no longer measured is one."""
    return not judgement.comparisons and not (is_gate and judgement.broken)


def _report_nothing(judgement: Judgement, is_between_runs: bool) -> int:
    from flopwatch.output.compare_tables import describe_nothing

    tell(f"flopwatch: {describe_nothing(judgement, is_between_runs=is_between_runs)}")
    return NOTHING


def _decide(judgement: Judgement, despite: Sequence[str]) -> int:
    """The gate's exit code; what it rests on is told."""
    from flopwatch.analysis.verdicts import excuse

    counted = excuse(judgement, despite)
    if not counted and not judgement.broken:
        tell(
            "flopwatch: nothing was comparable like for like; measure both sides alike, or name "
            "what may differ by --despite FIELD"
        )
        return NOTHING
    return _report_regressions(judgement, counted)


def _report_regressions(judgement: Judgement, counted: Sequence[Comparison]) -> int:
    from flopwatch.output.compare_tables import name_case

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
    from flopwatch.analysis.summary import summarize
    from flopwatch.analysis.vs_published import as_dict, put_beside
    from flopwatch.output.console import print_remarks, print_sheets
    from flopwatch.output.vs_published_tables import (
        describe_beside,
        make_beside_sheets,
        suggest_case,
    )
    from flopwatch.records.published import load

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


MOST_WIDTH = 110
"""Longer lines of prose are hard to read."""


@click.command()
@click.argument("results", nargs=-1, type=click.Path(path_type=Path))
@click.option("--list", "list_kinds", is_flag=True, help="What is looked for, and how.")
@click.option("--ignore", multiple=True, metavar="KIND",
              help="Leave out doubts of this kind; may be repeated.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 on any doubt.")
@options.skip_corrupt
@options.as_json
def check(
    results: tuple[Path, ...],
    list_kinds: bool,
    ignore: tuple[str, ...],
    strict: bool,
    skip_corrupt: bool,
    as_json: bool,
) -> None:
    """Say what to doubt about RESULTS, and what to do about it.

    Exit codes: 0 nothing spoils a number, 1 something does, 2 usage.

    \b
    flopwatch check results/*.jsonl
    flopwatch check results/dyad.jsonl --ignore loaded-machine --strict
    flopwatch check results/dyad.jsonl --json | jq '.[].kind'
    flopwatch check --list
    """
    from flopwatch.analysis.warnings import KINDS, as_dict, find_doubts, kind_as_dict
    from flopwatch.errors import UsageError
    from flopwatch.output.console import open_stdout
    from flopwatch.output.warning_tables import count_doubts, write_doubts, write_kinds

    width = min(open_stdout().width, MOST_WIDTH)
    if list_kinds:
        content = [kind_as_dict(name) for name in KINDS]
        _print_findings(json.dumps(content) if as_json else "\n".join(write_kinds(width)))
        return
    unknown = [kind for kind in ignore if kind not in KINDS]
    if unknown:
        raise UsageError(
            f"there is no kind of doubt {unknown[0]!r}; `flopwatch check --list` has them"
        )
    if not results:
        raise click.UsageError("name a results file, or ask for --list")
    records = read_records(results, skip_corrupt)
    doubts = [doubt for doubt in find_doubts(records) if doubt.kind not in ignore]
    if as_json:
        _print_findings(json.dumps([as_dict(doubt) for doubt in doubts]))
    else:
        _print_findings("\n".join(write_doubts(doubts, width)))
        tell(count_doubts(doubts, len(records)))
    if any(strict or doubt.severity == "spoils" for doubt in doubts):
        sys.exit(1)


@click.command("break-even")
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--axis", metavar="AXIS",
              help="An axis of counts, such as tokens or batch_size.  [default: the only one that "
                   "has several values]")  # fmt: skip
@click.option("--variant", "variants", multiple=True, metavar="NAME",
              help="Only this one; may be repeated.")  # fmt: skip
@options.skip_corrupt
@options.as_json
def break_even(
    results: tuple[Path, ...],
    axis: str | None,
    variants: tuple[str, ...],
    skip_corrupt: bool,
    as_json: bool,
) -> None:
    """Say from where on variants in RESULTS are faster than their baseline.

    By verdicts, it lies between two measured values; where between them, is interpolated, with an
    interval.

    \b
    flopwatch break-even results/switchback.jsonl
    flopwatch break-even results/mine.jsonl --axis batch_size --variant fused
    flopwatch break-even results/switchback.jsonl --json | jq '.[].crossings[].point'
    """
    from flopwatch.analysis.break_even import choose_axis, find_break_evens, series_as_dict
    from flopwatch.analysis.summary import summarize
    from flopwatch.errors import UsageError
    from flopwatch.output.break_even_tables import make_break_even_sheets
    from flopwatch.output.console import print_sheets

    compared = [row for row in summarize(read_records(results, skip_corrupt)) if row.verdict]
    known = dict.fromkeys(row.record.variant for row in compared)
    unknown = [variant for variant in variants if variant not in known]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} was not compared with a baseline; what was: "
            f"{', '.join(map(printable, known)) or '-'}"
        )
    rows = [row for row in compared if not variants or row.record.variant in variants]
    chosen = choose_axis(rows, axis)
    if as_json:
        found = find_break_evens(rows, chosen)
        click.echo(json.dumps([series_as_dict(one) for one in found]))
        return
    print_sheets(make_break_even_sheets(rows, chosen))


def _print_findings(text: str) -> None:
    if text:
        say(text)
