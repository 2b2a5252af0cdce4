"""Pictures of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flopwatch.commands import options
from flopwatch.commands.printing import tell
from flopwatch.commands.results import read_records
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row
    from flopwatch.report.pictures import Picture


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--plot", "name", metavar="NAME",
              help="Which picture: --list has their names.  [default: the most telling one of each "
                   "table]")  # fmt: skip
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="A .png, .svg or .pdf; several pictures are numbered.  [default: "
                   "SUITE-NAME.png]")  # fmt: skip
@click.option("--most", type=click.IntRange(min=1), default=12, show_default=True,
              help="Draw so many pictures at the most.")  # fmt: skip
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="Say what can be drawn from these results, and what each picture needs.",
)
@options.skip_corrupt
@options.as_json
def plot(
    results: tuple[Path, ...],
    name: str | None,
    out: Path | None,
    most: int,
    only_list: bool,
    skip_corrupt: bool,
    as_json: bool,
) -> None:
    """Draw RESULTS: the picture that tells most, or the one that is named.

    \b
    flopwatch plot results/dyad.jsonl -o dyad.png
    flopwatch plot results/steps.jsonl --plot parts -o parts.pdf
    flopwatch plot results/switchback.jsonl --list
    """
    from flopwatch.analysis.summary import summarize
    from flopwatch.report.tables import divide

    if only_list and (name is not None or out is not None):
        raise click.UsageError("--list draws nothing; leave --plot and --out away")
    tables = divide(summarize(read_records(results, skip_corrupt)))
    if only_list:
        _list_kinds(tables, as_json)
        return
    pictures = _choose(tables, name, most)
    files = _write(pictures, out)
    if as_json:
        told = [
            {"file": str(file), "name": p.name, "title": p.title, "subject": p.subject}
            for file, p in zip(files, pictures, strict=True)
        ]
        click.echo(json.dumps(told))


def _choose(tables: Sequence[Sequence[Row]], name: str | None, most: int) -> list[Picture]:
    from flopwatch.report.pictures.catalog import choose_first, describe_missing, make_pictures

    if not tables:
        raise UsageError("there are no records to draw; measure some with: flopwatch run")
    found = choose_first(tables) if name is None else make_pictures(name, tables)
    pictures = list(islice(found, most))
    if not pictures:
        raise UsageError(
            "these results have nothing to draw; --list says what pictures need"
            if name is None
            else describe_missing(name)
        )
    if next(found, None) is not None:
        tell(f"flopwatch: only the first {most} pictures; --most draws more")
    return pictures


def _write(pictures: Sequence[Picture], out: Path | None) -> list[Path]:
    """Nothing, if one of the files cannot be written to."""
    from flopwatch.report.matplotlib_drawing import check_path, draw_file

    files = _name_files(pictures, out)
    for file in files:
        check_path(file)
    for picture, file in zip(pictures, files, strict=True):
        draw_file(picture, file)
        tell(f"wrote {file}: {picture.title}, {picture.subject}")
    return files


def _name_files(pictures: Sequence[Picture], out: Path | None) -> list[Path]:
    """Numbered where there are several of one name."""
    wanted = [
        Path(f"{_file_word(p.subject)}-{p.name}.png") if out is None else out for p in pictures
    ]
    seen: dict[Path, int] = {}
    files = []
    for path in wanted:
        seen[path] = seen.get(path, 0) + 1
        is_alone = wanted.count(path) == 1
        files.append(path if is_alone else path.with_stem(f"{path.stem}-{seen[path]}"))
    return files


def _file_word(subject: str) -> str:
    """The suite's name, as a name of a file: it comes from a record."""
    suite = subject.partition(" ")[0]
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in suite)[:60] or "results"


def _list_kinds(tables: Sequence[Sequence[Row]], as_json: bool) -> None:
    from flopwatch.report.console import print_table
    from flopwatch.report.pictures.catalog import KINDS, make_pictures

    counts = {name: sum(1 for _ in make_pictures(name, tables)) for name in KINDS}
    if as_json:
        told = [
            {"name": n, "pictures": counts[n], "shows": k.shows, "needs": k.needs, "run": k.run}
            for n, k in KINDS.items()
        ]
        click.echo(json.dumps(told))
        return
    rows = [(n, counts[n] or "none", k.shows, k.needs) for n, k in KINDS.items()]
    print_table(["plot", "from these", "shows", "needs"], rows)
