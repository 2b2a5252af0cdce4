"""The report: results as a page."""

from __future__ import annotations

import os
from pathlib import Path

import click

from flopwatch.commands import options
from flopwatch.commands.printing import tell
from flopwatch.commands.results import read_records
from flopwatch.errors import FlopwatchError, UsageError


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
              required=True, metavar="PAGE",
              help="The file to write, or - for stdout. An earlier report is replaced; any other "
                   "file is left alone.")  # fmt: skip
@click.option("--title", default="flopwatch report", show_default=True)
@options.skip_corrupt
def report(results: tuple[Path, ...], out: Path, title: str, skip_corrupt: bool) -> None:
    """Write RESULTS as one self-contained HTML page.

    \b
    flopwatch report results/*.jsonl -o report.html
    flopwatch report results/dyad.jsonl -o dyad.html --title "DYAD on our machine"
    flopwatch report results/steps.jsonl -o - > steps.html
    """
    from flopwatch.report.page import render_page

    is_stdout = str(out) == "-"
    if not is_stdout:
        refuse_other_files(out)  # before the work
    page = render_page(read_records(results, skip_corrupt), title)
    if is_stdout:
        click.echo(page, nl=False)
        return
    try:
        write_page(out, page)
    except OSError as error:
        raise FlopwatchError(
            f"{out} cannot be written ({error.strerror}); choose another"
        ) from None
    tell(f"wrote {out}")


def refuse_other_files(out: Path) -> None:
    """A slip of the keyboard must not replace results by their report."""
    from flopwatch.report.page import is_report

    try:
        is_other = out.is_file() and out.stat().st_size > 0 and not is_report(out)
    except OSError as error:
        raise FlopwatchError(f"{out} cannot be read ({error.strerror}); choose another") from None
    if is_other:
        raise UsageError(
            f"{out} exists and is no report of flopwatch; choose another, or remove it"
        )


def write_page(out: Path, page: str) -> None:
    """All of it or nothing: readers never see half a page."""
    if out.exists() and not out.is_file():  # a pipe or a device, which must not be replaced
        out.write_text(page, encoding="utf-8")
        return
    target = out.resolve()  # a link goes on leading where it leads
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
