"""Published benchmarks, as data of the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.commands import options
from flopwatch.commands.printing import say, tell
from flopwatch.errors import FlopwatchError, UsageError

if TYPE_CHECKING:
    from flopwatch.records.published import Publication
    from flopwatch.records.record import Record


@click.command()
@click.argument("name", required=False)
@click.option("--layout", type=click.Choice(["plain", "published"]), default="plain",
              show_default=True,
              help="plain: our usual tables. published: as its authors print it, every digit."
              )  # fmt: skip
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False),
              help="Write its records to a new file that all other commands read.")  # fmt: skip
@options.as_json
def published(name: str | None, layout: str, out: Path | None, as_json: bool) -> None:
    """List published benchmarks, or show the one called NAME.

    \b
    flopwatch published
    flopwatch published dyad
    flopwatch published switchback --layout published
    flopwatch published mosaic -o mosaic.jsonl
    """
    if name is None:
        if out is not None or layout != "plain":
            raise UsageError("-o and --layout are for one benchmark; name it before them")
        _print_list(as_json)
        return
    from flopwatch.records.published import find_publication, load

    publication, records = find_publication(name), load(name)
    if out is not None and (as_json or layout != "plain"):
        raise UsageError("-o writes records and prints nothing; leave --json and --layout out")
    if out is not None:
        _write(records, out)
    elif as_json:
        _print_json(publication, records, layout)
    elif layout == "published":
        _print_as_published(publication, records)
    else:
        _print_tables(publication, records)


def _print_list(as_json: bool) -> None:
    from flopwatch.records.published import PUBLICATIONS, load
    from flopwatch.report.console import print_table

    listed = [{**asdict(each), "records": len(load(each.name))} for each in PUBLICATIONS.values()]
    if as_json:
        click.echo(json.dumps(listed))
        return
    columns = ["name", "what", "source", "year", "records", "hardware"]
    print_table(columns, [[row[column] for column in columns] for row in listed])


def _print_tables(publication: Publication, records: Sequence[Record]) -> None:
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.console import print_rows

    # Parts would make thousands of lines; the published layout has them.
    print_rows([row for row in summarize(records) if not row.in_parts])
    click.echo()
    for line in describe_publication(publication):
        say(line)


def _print_as_published(publication: Publication, records: Sequence[Record]) -> None:
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.layouts import LAYOUTS

    printout = LAYOUTS[publication.name](summarize(records))
    for line in [*describe_publication(publication), *printout.remarks]:
        tell(f"flopwatch: {line}")
    for line in printout.lines:
        say(line)


def _print_json(publication: Publication, records: Sequence[Record], layout: str) -> None:
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.layouts import LAYOUTS

    lay_out = LAYOUTS[publication.name if layout == "published" else layout]
    content = {**asdict(publication), "rows": lay_out(summarize(records)).content}
    click.echo(json.dumps(content))


def describe_publication(publication: Publication) -> list[str]:
    """What a reader must know beside the numbers."""
    return [
        f"source: {publication.source}, {publication.year}; {publication.hardware}",
        f"not stated: {'; '.join(publication.unknown)}",
        *(f"mind: {advice}" for advice in publication.advice),
    ]


def _write(records: Sequence[Record], out: Path) -> None:
    """A file that is there may hold measurements: it is left alone."""
    from flopwatch.records.record import encode

    try:
        with out.open("xb") as file:
            file.writelines(encode(record) + b"\n" for record in records)
    except FileExistsError:
        raise FlopwatchError(f"{out} is there already; choose another name") from None
    except OSError as error:
        raise FlopwatchError(
            f"{out} cannot be written ({error.strerror}); choose another"
        ) from None
    tell(f"wrote {len(records)} records to {out}")
