"""Files of other programs: what they measured as records, and records for them to read.

An importer never loses anything comparable silently: what a record cannot hold is a remark. An
exporter writes what was measured and says which statistic it is, in which unit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flopwatch.analysis.comparable import conditions
from flopwatch.errors import FlopwatchError, StoreError, UsageError
from flopwatch.records.exchange import github_action, google_benchmark, pyperf, pytorch_database
from flopwatch.records.foreign import (
    ForeignError,
    Import,
    Importer,
    parse_documents,
    read_text,
)
from flopwatch.records.record import decode, encode
from flopwatch.records.store import Say, Store, read

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row
    from flopwatch.records.record import Record

IMPORTERS: dict[str, Importer] = {
    "pyperf": pyperf.IMPORTER,
    "google-benchmark": google_benchmark.IMPORTER,
    "pytorch": pytorch_database.IMPORTER,
}
"""By name; the first that recognises a file reads it."""

EXPORTERS: dict[str, Callable[[Sequence[Row]], str]] = {
    "pyperf": pyperf.export,
    "pytorch": pytorch_database.export,
    "github-action-smaller": github_action.export_smaller,
    "github-action-bigger": github_action.export_bigger,
}
"""By name: measured rows as a file's text."""


class Imported(NamedTuple):
    source: str
    """The file and its format."""
    content: Import
    num_new: int
    """Records that were not there before."""


def import_into(
    out: Path,
    files: Sequence[Path],
    form: str | None = None,
    *,
    say: Say = lambda sentence: None,
) -> Iterator[Imported]:
    """Append what is in foreign files to a results file, of which nothing is there already; all
    files are read before anything is written. `say` is called where a run holds its lock."""
    known = {(r.run_id, r.case_id) for r in read(out).records} if out.exists() else set()
    found = [(file, *_read_storable(file, form)) for file in files]
    with Store.open(out, say=say) as store:
        for file, name, content in found:
            new = [each for each in content.records if (each.run_id, each.case_id) not in known]
            for record in new:
                store.append(record)
            known.update((record.run_id, record.case_id) for record in new)
            yield Imported(f"{file}, {name}", content, len(new))


def _read_storable(file: Path, form: str | None) -> tuple[str, Import]:
    """Records that the store will take: all or none."""
    try:
        name, content = read_file(file, form)
        for record in content.records:
            try:
                decode(encode(record))
            except (StoreError, OverflowError) as error:
                raise ForeignError(f"{record.variant} cannot be a record: {error}") from None
    except ForeignError as error:
        sentence = " ".join(str(error).split())  # names in foreign files may have line breaks
        raise FlopwatchError(f"{file} cannot be imported: {sentence}") from None
    return name, content


def read_file(path: Path, form: str | None = None) -> tuple[str, Import]:
    """The format of a foreign file, recognised where none is given, and what is in it.

    Raises ForeignError with a sentence that does not name the file.
    """
    from flopwatch.records.published import PUBLICATIONS

    text = read_text(path)
    if form in PUBLICATIONS:
        return form, _read_published(text, PUBLICATIONS[form].parse)
    if form is not None:
        return form, _read(text, parse_documents(text), IMPORTERS[form])
    try:
        documents = parse_documents(text)
    except ForeignError as error:
        # The text of a published benchmark may be no JSON.
        return _find_published(text, wrong=error if text.lstrip()[:1] in ("{", "[", "") else None)
    for name, importer in IMPORTERS.items():
        if importer.recognise(documents):
            return name, _read(text, documents, importer)
    return _find_published(text, wrong=None)


def _read(text: str, documents: Sequence[Any], importer: Importer) -> Import:
    content = importer.read(documents)
    if not content.records:
        raise ForeignError("; ".join(["it has nothing that a record can hold", *content.remarks]))
    run = f"import:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    records = [replace(record, run_id=run) for record in content.records]
    remarks = list(content.remarks)
    cases = [(record.case_id, conditions(record)) for record in records]
    num_doubles = len(cases) - len(set(cases))
    if num_doubles:
        remarks.append(
            f"{num_doubles} of its records are of a case that others are of too; tables show one"
        )
    return Import(records=records, remarks=remarks)


def _find_published(text: str, wrong: ForeignError | None) -> tuple[str, Import]:
    """By trying; `wrong` is what to say where it is none of them."""
    from flopwatch.records.published import PUBLICATIONS

    for name, publication in PUBLICATIONS.items():
        try:
            return name, _read_published(text, publication.parse)
        except ForeignError:
            continue
    known = ", ".join([*IMPORTERS, *PUBLICATIONS])
    raise wrong or ForeignError(f"its format is none of those that are known ({known})")


def _read_published(text: str, read: Callable[[str], list[Record]]) -> Import:
    try:
        return Import(records=read(text))
    except UsageError as error:
        raise ForeignError(str(error)) from None
