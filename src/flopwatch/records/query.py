"""SQL over results files, by DuckDB.

Two views show all the files at once:

    records   one row a record; params, settings, environment and the like are JSON, so that an
              axis is reached by ``params->>'dtype'``
    samples   one row a sample and phase, warm-up included and marked

    SELECT suite, variant, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL

There are two ways to the rows. The fast one lets DuckDB parse the files where they are. It is
taken where every line ends as this version of flopwatch ends a record. Any other file (torn,
edited, of an older schema), and any that DuckDB cannot parse, is first read record by record with
``store.scan`` and written anew to a temporary folder. That is slower, but brings old records up to
date and gives the very warnings and errors that every other command gives. On the fast way,
DuckDB does not look at values that the query does not use.

A query may only read. The files hold measurements that cannot be had again, and a query is often
pasted from somewhere else.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwatch.errors import UsageError
from flopwatch.records.record import SCHEMA, encode
from flopwatch.records.store import MAX_LINE_BYTES, reading, scan

if TYPE_CHECKING:
    import duckdb

Rows = tuple[list[str], list[tuple[Any, ...]]]

FIELDS = {
    "id": "VARCHAR",
    "group": "VARCHAR",
    "run": "VARCHAR",
    "suite": "VARCHAR",
    "variant": "VARCHAR",
    "baseline": "VARCHAR",
    "params": "JSON",
    "status": "VARCHAR",
    "reason": "VARCHAR",
    "samples_ns": "MAP(VARCHAR, DOUBLE[])",
    "rounds": "BIGINT[]",
    "loops": "BIGINT[]",
    "warmup_samples": "BIGINT",
    "steady": "BOOLEAN",
    "stop": "VARCHAR",
    "flops": "JSON",
    "bytes": "JSON",
    "peak_memory_bytes": "BIGINT",
    "check": "JSON",
    "prediction": "JSON",
    "notes": "VARCHAR[]",
    "settings": "JSON",
    "environment": "JSON",
    "sources": "JSON",
    "taken_at": "VARCHAR",
    "schema": "BIGINT",
}
"""The fields of a record. Declared, not inferred: inference reads a part of every file twice, and
files with different parameters would get different types."""

IN_SAMPLES = ("samples_ns", "rounds", "loops")

VIEWS = {
    "records": (*(name for name in FIELDS if name not in IN_SAMPLES), "samples", "file"),
    "samples": (
        *("id", "group", "run", "suite", "variant", "params"),
        *("phase", "sample", "round", "loops", "warmup", "ns"),
    ),
}

# Where lists are unequal, unnest fills up with NULL: the condition at the end finds that, and
# times that record.decode refuses. It is a CASE because OR may evaluate its sides in any order.
UNNEST_SAMPLES = """
    SELECT *, sample < warmup_samples AS warmup
    FROM (
        SELECT * EXCLUDE (rounds, loops, entry), entry.key AS phase,
            unnest(entry.value) AS ns, unnest(rounds) AS "round", unnest(loops) AS loops,
            generate_subscripts(rounds, 1) - 1 AS sample
        FROM (SELECT * EXCLUDE (samples), unnest(map_entries(samples_ns)) AS entry FROM lines)
    )
    WHERE CASE WHEN ns > 0 AND ns < 'inf'::DOUBLE AND "round" >= 0 AND loops >= 1 THEN true
        ELSE error('a sample is not valid') END
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    warnings: list[str]


def query(paths: Sequence[Path], sql: str, skip_corrupt: bool = False) -> Result:
    """Run one SQL query over the records of all files.

    Raises UsageError for a query that cannot be run, and what `store.read` raises for a file that
    cannot be read.
    """
    import duckdb

    if not paths:
        raise UsageError("there is no results file to query; name at least one")
    _refuse_other_than_utf8([*map(str, paths), sql])
    # By real path: the same file under two names would count its records twice.
    originals = {os.path.realpath(path): path for path in paths}
    with tempfile.TemporaryDirectory(prefix="flopwatch-") as folder:
        copier = _Copier(Path(folder), skip_corrupt)
        # Where DuckDB finds the lines of each file: there, or in a copy.
        lines = {
            real if _is_plain(path) else copier.copy(path): path for real, path in originals.items()
        }
        try:
            columns, rows = _run(lines, sql, folder)
        except (duckdb.InvalidInputException, duckdb.IOException):
            # A line that DuckDB cannot parse, or one that a run is just writing.
            copier = _Copier(Path(folder), skip_corrupt)
            lines = {copier.copy(path): path for path in originals.values()}
            try:
                columns, rows = _run(lines, sql, folder)
            except duckdb.Error as error:
                raise _explain(error) from None
        except duckdb.Error as error:
            raise _explain(error) from None
    return Result(columns=columns, rows=rows, warnings=copier.warnings)


class _Copier:
    """Rewrites files as this version of flopwatch would have written them."""

    def __init__(self, folder: Path, skip_corrupt: bool) -> None:
        self.warnings: list[str] = []
        self._folder = folder
        self._skip_corrupt = skip_corrupt
        self._num_copies = 0

    def copy(self, path: Path) -> str:
        self._num_copies += 1
        target = Path(os.path.realpath(self._folder)) / f"{self._num_copies}.jsonl"
        with target.open("wb") as file:
            for record in scan(path, self.warnings, skip_corrupt=self._skip_corrupt):
                file.write(encode(record) + b"\n")
        return str(target)


def _is_plain(path: Path) -> bool:
    """Whether every line is whole and of this version, by the look of its end."""
    ending = b',"schema":%d}\n' % SCHEMA
    with reading(path) as file:
        return all(
            line.endswith(ending) for line in iter(lambda: file.readline(MAX_LINE_BYTES), b"")
        )


def _run(lines: dict[str, Path], sql: str, folder: str) -> Rows:
    """Columns and rows of a query over the given files; DuckDB's own errors."""
    import duckdb

    with duckdb.connect() as connection:
        # Otherwise Python's variables would be tables, and large queries would spill into the
        # current folder.
        connection.execute("SET python_enable_replacements = false")
        connection.execute(f"SET temp_directory = {_quote(str(Path(folder) / 'spill'))}")
        _create_views(connection, lines)
        _lock_down(connection, list(lines))
        statements = connection.extract_statements(sql)
        # COPY could overwrite the results, even though DuckDB may open no other file.
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(
                "a query must be one statement that reads: SELECT, WITH, FROM, DESCRIBE, SUMMARIZE "
                "or PIVOT with its values named by IN"
            )
        cursor = connection.execute(statements[0])
        return [column[0] for column in cursor.description or ()], cursor.fetchall()


def _create_views(connection: duckdb.DuckDBPyConnection, lines: dict[str, Path]) -> None:
    files = _list(glob.escape(real) for real in lines)
    types = ", ".join(f"{_quote(name)}: {_quote(kind)}" for name, kind in FIELDS.items())
    original = (
        f"list_extract({_list(map(str, lines.values()))}, list_position({_list(lines)}, filename))"
    )
    # Twice the longest line is what DuckDB reads at once, in each thread.
    connection.execute(f"""
        CREATE VIEW lines AS
        SELECT * EXCLUDE (filename), {original} AS file, len(rounds) AS samples
        FROM read_json({files}, columns = {{{types}}}, format = 'newline_delimited',
            compression = 'uncompressed', filename = true, maximum_object_size = {MAX_LINE_BYTES})
    """)
    origins = {"records": "lines", "samples": f"({UNNEST_SAMPLES})"}
    for view, columns in VIEWS.items():
        names = ", ".join(f'"{column}"' for column in columns)
        connection.execute(f"CREATE VIEW {view} AS SELECT {names} FROM {origins[view]}")


def _lock_down(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Let a query see the results files and nothing else: no other file, no network.

    A query that somebody was sent could otherwise read a private key into its result, or have
    DuckDB fetch an extension. DuckDB before 1.2 cannot except single files from its ban; there
    only the network is out of reach.
    """
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    known = connection.execute("SELECT 1 FROM duckdb_settings() WHERE name = 'allowed_paths'")
    if known.fetchone():
        # DuckDB compares the pattern that a view names, not only the file that it finds by it.
        allowed = _list([*files, *map(glob.escape, files)])
        connection.execute(f"SET allowed_paths = {allowed}")
        connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _explain(error: duckdb.Error) -> UsageError:
    """DuckDB's message, which may be a page, as one sentence."""
    import duckdb

    first, *others = str(error).strip().splitlines() or ["unknown error"]
    _, _, message = first.rpartition(" Error: ")
    hints = [line for line in others if line.startswith("Did you mean")]
    sentence = " ".join(["the query cannot be run:", message.strip(), *hints])
    if isinstance(error, duckdb.BinderException | duckdb.CatalogException) and (
        "column" in message or "able" in message
    ):
        views = (f"{view} ({', '.join(columns)})" for view, columns in VIEWS.items())
        sentence += f" There are {' and '.join(views)}."
    return UsageError(sentence)


def _refuse_other_than_utf8(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{text!r} is not UTF-8, which DuckDB needs; rename it") from None


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _list(texts: Any) -> str:
    return "[" + ", ".join(map(_quote, texts)) + "]"
