"""Exchange results with other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.cli.options import print_remark, read_records
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.records.record import Record

# Written out: to read them from `records.exchange` would make every `--help` load it.
IMPORTS = ["pyperf", "google-benchmark", "pytorch", "dyad", "switchback", "cs336", "mosaic"]
RECORDS = "flopwatch"
EXPORTS = [RECORDS, "pyperf", "pytorch", "github-action-smaller", "github-action-bigger"]


@click.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.format_option(IMPORTS, "[default: recognised]")
@options.out("Records are appended.", required=True)
def import_files(files: tuple[Path, ...], form: str | None, out: Path) -> None:
    """Import what other programs measured.

    Appends the measurements in FILES to a results file.

    Reads the JSON files of pyperf and google-benchmark, results for PyTorch's benchmark database,
    and the output of published benchmarks. Records that are there already are not added again.

    \b
    flopwatch import bench.json -o results/bench.jsonl
    flopwatch import numbers.txt --format dyad -o results/theirs.jsonl
    flopwatch show results/bench.jsonl
    """
    from flopwatch.output.units import plural
    from flopwatch.records.exchange import import_into

    for one in import_into(out, files, form, say=options.say):
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


@click.command(cls=Command)
@options.results
@options.format_option(EXPORTS, "", required=True)
@options.out("Existing files are not overwritten.  [default: -, standard output]",
             or_stdout=True, default="-")  # fmt: skip
@options.skip_corrupt
def export(results: tuple[Path, ...], form: str, out: Path, skip_corrupt: bool) -> None:
    """Export RESULTS for another program.

    Writes the newest record of every case.

    pyperf gets all samples; other formats get medians with their intervals, named as such.
    Of github-action-benchmark's tools, customSmallerIsBetter reads github-action-smaller (times,
    memory), and customBiggerIsBetter github-action-bigger (rates, speedups). The format flopwatch
    is a results file of all records, such as those of several files or of a published benchmark.

    \b
    flopwatch export results/steps.jsonl --format pyperf -o steps.json
    flopwatch export results/steps.jsonl --format github-action-smaller -o bench.json
    flopwatch export results/*.jsonl --format pytorch -o upload/results.json
    flopwatch export published:mosaic --format flopwatch -o mosaic.jsonl
    """
    from flopwatch.records.file_safety import replace_file, require_replaceable

    if str(out) != "-":  # nothing in an export says that it is ours
        require_replaceable(out, lambda content: False, "empty")
    records = read_records(results, skip_corrupt)
    text = _write_records(records) if form == RECORDS else _write_foreign(records, form)
    if str(out) == "-":
        click.echo(text.encode(), nl=False)
        return
    replace_file(out, text.encode())
    print_remark(f"wrote {out}")


def _write_records(records: Sequence[Record]) -> str:
    from flopwatch.records.record import encode

    return "".join(encode(record).decode() + "\n" for record in records)


def _write_foreign(records: Sequence[Record], form: str) -> str:
    """Cases without a time are left out, with a remark."""
    from flopwatch.analysis.summary import summarize
    from flopwatch.records.exchange import EXPORTERS
    from flopwatch.suites.case import label

    rows = summarize(records)
    for record in (row.record for row in rows if row.total_ns is None):
        case = " ".join(filter(None, [record.suite, record.variant, label(record.params)]))
        why = record.message or "no time was measured"
        sentence = _on_one_line(f"{case} was left out: {record.status}: {why}")
        print_remark(f"flopwatch: {sentence}")
    measured = [row for row in rows if row.total_ns is not None]
    if not measured:
        raise UsageError("there is nothing to export: no case has a time; name other results")
    return EXPORTERS[form](measured) + "\n"


@click.command()
@click.argument("name", required=False, metavar="[NAME]",
                type=options.Word(list_known=options.list_schemas))  # fmt: skip
def schema(name: str | None) -> None:
    """Print the JSON schema of records or of a command's --json.

    Without NAME, lists all schemas.

    \b
    flopwatch schema
    flopwatch schema record > record.schema.json
    flopwatch schema compare
    """
    from flopwatch.output.console import print_table
    from flopwatch.output.json_schemas import OUTPUTS, make_schema

    if name is not None:
        options.print_json(make_schema(name), indent=1)
        return
    rows = [(name, output.version, output.command) for name, output in OUTPUTS.items()]
    print_table(["schema", "version", "of"], rows)
