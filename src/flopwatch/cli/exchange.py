"""Exchange results with other programs; published benchmarks, which the package carries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.cli import options
from flopwatch.cli.options import print_lines, print_remark, read_records
from flopwatch.errors import FlopwatchError, UsageError

if TYPE_CHECKING:
    from flopwatch.records.published import Publication
    from flopwatch.records.record import Record

# Written out: to read them from `records.exchange` would make every `--help` load it.
IMPORTS = ["pyperf", "google-benchmark", "pytorch", "dyad", "switchback", "cs336", "mosaic"]
EXPORTS = ["pyperf", "pytorch", "github-action-smaller", "github-action-bigger"]


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(IMPORTS), help="[default: recognised]")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
              help="Results file to append to.")  # fmt: skip
def import_files(files: tuple[Path, ...], form: str | None, out: Path) -> None:
    """Import what other programs measured.

    What is in FILES is appended to a results file.

    Reads the JSON files of pyperf and google-benchmark, results for PyTorch's benchmark database,
    and the output of published benchmarks. What is there already is not added again.

    \b
    flopwatch import bench.json -o results/bench.jsonl
    flopwatch import numbers.txt --format dyad -o results/theirs.jsonl
    flopwatch show results/bench.jsonl
    """
    from flopwatch.output.units import plural
    from flopwatch.records.exchange import import_into

    for one in import_into(out, files, form):
        for remark in one.content.remarks:
            print_remark(f"flopwatch: {one.source}: {_on_one_line(remark)}")
        num_old = len(one.content.records) - one.num_new
        added = f"{plural(one.num_new, 'record')} added to {out}"
        if num_old:
            added = (
                f"{added if one.num_new else 'nothing added'}: {out} has {num_old} of them already"
            )
        print_remark(f"flopwatch: {one.source}: {added}")


def _on_one_line(text: object) -> str:
    """Names in foreign files may have line breaks."""
    return " ".join(str(text).split())


@click.command()
@options.results
@click.option("--format", "form", type=click.Choice(EXPORTS), required=True)
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
              default="-",
              help="A new file; one that is there is left alone.  [default: standard output]"
              )  # fmt: skip
@options.skip_corrupt
def export(results: tuple[Path, ...], form: str, out: Path, skip_corrupt: bool) -> None:
    """Export RESULTS for another program.

    The newest record of every case is written.

    pyperf gets all samples; other formats get medians with their intervals, named as such.
    Of github-action-benchmark's tools, customSmallerIsBetter reads github-action-smaller (times,
    memory), and customBiggerIsBetter github-action-bigger (rates, speedups).

    \b
    flopwatch export results/steps.jsonl --format pyperf -o steps.json
    flopwatch export results/steps.jsonl --format github-action-smaller -o bench.json
    flopwatch export results/*.jsonl --format pytorch -o upload/results.json
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.errors import UsageError
    from flopwatch.records.exchange import EXPORTERS

    _refuse_other_files(out)  # before the work
    rows = summarize(read_records(results, skip_corrupt))
    measured = [row for row in rows if row.total_ns is not None]
    _name_others([row.record for row in rows if row.total_ns is None])
    if not measured:
        raise UsageError("there is nothing to export: no case has a time; name other results")
    text = EXPORTERS[form](measured) + "\n"
    if str(out) == "-":
        click.echo(text, nl=False)
        return
    _write(text, out)
    print_remark(f"wrote {out}")


def _name_others(records: Sequence[Record]) -> None:
    """What an export has not."""
    from flopwatch.suites.case import label

    for record in records:
        case = " ".join(filter(None, [record.suite, record.variant, label(record.params)]))
        why = record.message or "no time was measured"
        sentence = _on_one_line(f"{case} was left out: {record.status}: {why}")
        print_remark(f"flopwatch: {sentence}")


def _refuse_other_files(out: Path) -> None:
    """Measurements cannot be had again, and nothing in an export says that it is ours."""
    from flopwatch.errors import FlopwatchError, UsageError

    try:
        is_other = out.is_file() and out.stat().st_size > 0
    except OSError as error:
        raise FlopwatchError(f"{out} cannot be read ({error.strerror}); choose another") from None
    if is_other:
        raise UsageError(f"{out} exists; choose another, or remove it")


def _write(text: str, out: Path) -> None:
    from flopwatch.errors import FlopwatchError

    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FlopwatchError(
            f"{out} cannot be written ({error.strerror}); choose another"
        ) from None


@click.command()
@click.argument("name", required=False, type=options.Word(list_known=options.list_publications))
@click.option("--layout", type=click.Choice(["plain", "published"]), default="plain",
              show_default=True,
              help="plain: our usual tables. published: as its authors print it, every digit."
              )  # fmt: skip
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False),
              help="Write its records to a new file that all other commands read.")  # fmt: skip
@options.as_json
def published(name: str | None, layout: str, out: Path | None, as_json: bool) -> None:
    """List published benchmarks, or show one.

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
        _write_published(records, out)
    elif as_json:
        _print_json(publication, records, layout)
    elif layout == "published":
        _print_as_published(publication, records)
    else:
        _print_tables(publication, records)


def _print_list(as_json: bool) -> None:

    from flopwatch.output.console import print_table
    from flopwatch.records.published import PUBLICATIONS, load

    listed = [
        {**each.describe(), "records": len(load(each.name))} for each in PUBLICATIONS.values()
    ]
    if as_json:
        click.echo(json.dumps(listed))
        return
    columns = ["name", "what", "source", "year", "records", "hardware"]
    print_table(columns, [[row[column] for column in columns] for row in listed])


def _print_tables(publication: Publication, records: Sequence[Record]) -> None:
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.console import print_rows

    # Parts would make thousands of lines; the published layout has them.
    print_rows([row for row in summarize(records) if not row.in_parts])
    click.echo()
    for line in describe_publication(publication):
        print_lines(line)


def _print_as_published(publication: Publication, records: Sequence[Record]) -> None:
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.layouts.layouts import LAYOUTS

    printout = LAYOUTS[publication.name](summarize(records))
    for line in [*describe_publication(publication), *printout.remarks]:
        print_remark(f"flopwatch: {line}")
    for line in printout.lines:
        print_lines(line)


def _print_json(publication: Publication, records: Sequence[Record], layout: str) -> None:

    from flopwatch.analysis.summary import summarize
    from flopwatch.output.layouts.layouts import LAYOUTS

    lay_out = LAYOUTS[publication.name if layout == "published" else layout]
    content = {**publication.describe(), "rows": lay_out(summarize(records)).content}
    click.echo(json.dumps(content))


def describe_publication(publication: Publication) -> list[str]:
    """What a reader must know about the numbers."""
    return [
        f"source: {publication.source}, {publication.year}; {publication.hardware}",
        f"not stated: {'; '.join(publication.unknown)}",
        *(f"mind: {advice}" for advice in publication.advice),
    ]


def _write_published(records: Sequence[Record], out: Path) -> None:
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
    print_remark(f"wrote {len(records)} records to {out}")
