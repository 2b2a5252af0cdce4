"""What to doubt about results, and from where on a variant pays."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from flopwatch.commands import options
from flopwatch.commands.printing import say, tell
from flopwatch.commands.results import read_records
from flopwatch.report.text import printable

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
    from flopwatch.analysis.checks import KINDS, as_dict, find_doubts, kind_as_dict
    from flopwatch.errors import UsageError
    from flopwatch.report.checks import count_doubts, write_doubts, write_kinds
    from flopwatch.report.console import open_stdout

    width = min(open_stdout().width, MOST_WIDTH)
    if list_kinds:
        content = [kind_as_dict(name) for name in KINDS]
        _print(json.dumps(content) if as_json else "\n".join(write_kinds(width)))
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
        _print(json.dumps([as_dict(doubt) for doubt in doubts]))
    else:
        _print("\n".join(write_doubts(doubts, width)))
        tell(count_doubts(doubts, len(records)))
    if any(strict or doubt.severity == "spoils" for doubt in doubts):
        sys.exit(1)


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--axis", metavar="AXIS",
              help="An axis of counts, such as tokens or batch_size.  [default: the only one that "
                   "has several values]")  # fmt: skip
@click.option("--variant", "variants", multiple=True, metavar="NAME",
              help="Only this one; may be repeated.")  # fmt: skip
@options.skip_corrupt
@options.as_json
def crossover(
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
    flopwatch crossover results/switchback.jsonl
    flopwatch crossover results/mine.jsonl --axis batch_size --variant fused
    flopwatch crossover results/switchback.jsonl --json | jq '.[].crossings[].point'
    """
    from flopwatch.analysis.crossover import choose_axis, find_crossovers, series_as_dict
    from flopwatch.analysis.summary import summarize
    from flopwatch.errors import UsageError
    from flopwatch.report.console import print_sheets
    from flopwatch.report.crossover import make_crossover_sheets

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
        found = find_crossovers(rows, chosen)
        click.echo(json.dumps([series_as_dict(one) for one in found]))
        return
    print_sheets(make_crossover_sheets(rows, chosen))


def _print(text: str) -> None:
    if text:
        say(text)
