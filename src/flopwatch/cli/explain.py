"""Where the time of measured steps and layers goes, and what moved between two measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.cli import options
from flopwatch.cli.results import read_records
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row
    from flopwatch.records.record import Record

NOTHING = (
    "nothing to explain: no case was measured{}; measure some with: flopwatch run steps --quick"
)


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--where", metavar="CONDITION",
              help="Only cases for which it holds: SQL, over the columns that `flopwatch table "
                   "--columns help` lists.")  # fmt: skip
@click.option("--most", type=click.IntRange(min=1), default=12, show_default=True,
              help="Show so many cases of a table at the most; --json has all.")  # fmt: skip
@click.option("--roofline", is_flag=True,
              help="Phases and regions against their limits, too.")  # fmt: skip
@options.skip_corrupt
@options.as_json
def explain(
    results: tuple[Path, ...],
    where: str | None,
    most: int,
    roofline: bool,
    skip_corrupt: bool,
    as_json: bool,
) -> None:
    """Say where the time of RESULTS goes, in rows that add up to it, or which of them moved from an
    OLD file to a NEW one.

    Products are held against the peak that `flopwatch peaks` has measured, memory against its
    bandwidth; what ranks and the optimizer take is measured; what nothing accounts for is a row,
    too.

    \b
    flopwatch explain results/steps.jsonl
    flopwatch explain results/training.jsonl --where "variant = 'full-shard'" --roofline
    flopwatch explain old.jsonl new.jsonl
    flopwatch explain results/steps.jsonl --json | jq '.[].rows[] | [.name, .share]'
    flopwatch plot results/steps.jsonl --plot breakdown
    """
    if len(results) > 2:
        raise click.UsageError(
            f"explain takes one file or two, an old and a new one, and got {len(results)}"
        )
    if len(results) == 2 and roofline:
        raise click.UsageError("--roofline is for one file; explain the new one by itself")
    sides = [_select(read_records([file], skip_corrupt), where) for file in results]
    if len(sides) == 2:
        _explain_change(sides, most, as_json)
    else:
        _explain(sides[0], most, roofline, as_json)


def _select(records: Sequence[Record], where: str | None) -> list[Row]:
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.columns import list_columns
    from flopwatch.output.selection import select_rows

    rows = summarize(records)
    chosen = select_rows(rows, list_columns(rows), where) if where is not None else rows
    measured = [row for row in chosen if row.total_ns is not None]
    if not measured:
        raise UsageError(NOTHING.format(f" for which {where!r} holds" if where else ""))
    return measured


def _explain(rows: Sequence[Row], most: int, roofline: bool, as_json: bool) -> None:
    from flopwatch.output.breakdown_tables import (
        as_dict,
        explain_rows,
        make_breakdown_sheets,
        make_roof_sheets,
    )
    from flopwatch.output.console import print_sheets

    if as_json:
        click.echo(json.dumps([as_dict(one) for one in explain_rows(rows)]))
        return
    roofs = make_roof_sheets(rows, most) if roofline else []
    print_sheets([*make_breakdown_sheets(rows, most), *roofs])
    if roofline and not roofs:
        click.echo(
            "flopwatch: no phase has FLOPs, bytes and known limits, so there is no roofline",
            err=True,
        )


def _explain_change(sides: Sequence[Sequence[Row]], most: int, as_json: bool) -> None:
    from flopwatch.analysis.breakdown_moves import find_moved
    from flopwatch.output.breakdown_move_tables import (
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
        click.echo(json.dumps(moved_as_dict(moved)))
        return
    print_sheets(make_moved_sheets(moved, most))
    print_remarks(describe_moved(moved))
