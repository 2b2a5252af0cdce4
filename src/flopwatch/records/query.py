"""SQL over results files, by DuckDB.

Five views show all the files at once:

    records   one row a record; params, settings, environment and the like are JSON, so that an
              axis is reached by ``params->>'dtype'``
    samples   one row a sample and phase, warm-up included and marked
    ranks     one row a rank of a job and sample
    regions   one row a region and instrumented run
    curves    one row a point of a curve

A caller may add a sixth, ``cases``, of what analysis makes of the records.

    SELECT suite, variant, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL

There are two ways to the rows. The fast one lets DuckDB parse the files where they are. It is
taken where every line ends as this version of flopwatch ends a record. Any other file (torn,
edited), and any that DuckDB cannot parse, is first read record by record with
``store.scan`` and written to a temporary folder. That is slower, but gives the very warnings and
errors that every other command gives. On the fast way,
DuckDB does not look at values that the query does not use.

A query may only read. The files hold measurements that cannot be had again, and a query is often
pasted from somewhere else.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwatch.errors import StoreError, UsageError
from flopwatch.records.record import SCHEMA, Record, encode
from flopwatch.records.store import MAX_LINE_BYTES, reading, scan

if TYPE_CHECKING:
    import duckdb

Rows = tuple[list[str], list[tuple[Any, ...]]]
Prepare = Callable[["duckdb.DuckDBPyConnection"], None]

FIELDS = {
    "case_id": "VARCHAR",
    "group_id": "VARCHAR",
    "run_id": "VARCHAR",
    "suite": "VARCHAR",
    "variant": "VARCHAR",
    "baseline": "VARCHAR",
    "params": "JSON",
    "job": "JSON",
    "status": "VARCHAR",
    "message": "VARCHAR",
    "cause": "VARCHAR",
    "kind": "VARCHAR",
    "parts_of": "VARCHAR",
    "layout": "VARCHAR",
    "samples_ns": "MAP(VARCHAR, DOUBLE[])",
    "rounds": "BIGINT[]",
    "calls_per_sample": "BIGINT[]",
    "warmup_samples": "BIGINT",
    "steady": "BOOLEAN",
    "stop_reason": "VARCHAR",
    "rebuilt_rounds": "BIGINT[]",
    "flops": "JSON",
    "bytes": "JSON",
    "conditions": "JSON",
    "facts": "JSON",
    "columns": "JSON",
    "ranks": (
        "STRUCT(samples_ns MAP(VARCHAR, DOUBLE[]), waiting_ns DOUBLE[], transfer_ns DOUBLE[])[]"
    ),
    "instrumented_ns": "DOUBLE[]",
    "regions": "MAP(VARCHAR, STRUCT(calls BIGINT, samples_ns DOUBLE[]))",
    "curves": "MAP(VARCHAR, DOUBLE[])",
    "peak_memory_bytes": "BIGINT",
    "memory": "JSON",
    "resident_bytes": "BIGINT",
    "predicted_memory_bytes": "JSON",
    "first_call_page_faults": "BIGINT",
    "check": "JSON",
    "unchecked": "VARCHAR",
    "prediction": "JSON",
    "throttled": "VARCHAR[]",
    "notes": "VARCHAR[]",
    "settings": "JSON",
    "environment": "JSON",
    "sources": "JSON",
    "measured_at": "VARCHAR",
    "schema": "BIGINT",
}
"""The fields of a record. Declared, not inferred: inference reads a part of every file twice, and
files with different parameters would get different types."""

UNNESTED = (
    "samples_ns",
    "rounds",
    "calls_per_sample",
    "ranks",
    "instrumented_ns",
    "regions",
    "curves",
)
"""Fields with views of their own."""

OF_RECORD = ("case_id", "group_id", "run_id", "suite", "variant", "params")
VIEWS = {
    "records": (*(name for name in FIELDS if name not in UNNESTED), "samples", "file"),
    "samples": (*OF_RECORD, "phase", "sample", "round", "calls", "warmup", "ns"),
    "ranks": (*OF_RECORD, "rank", "sample", "round", "warmup", "ns", "waiting_ns", "transfer_ns"),
    "regions": (*OF_RECORD, "phase", "region", "calls", "sample", "round", "ns", "run_ns"),
    "curves": (*OF_RECORD, "curve", "point", "value"),
}

CASES = re.compile(r"\bcases\b", re.IGNORECASE)
"""In a query that needs the view: nothing is summarized for others."""

RESERVED = ("check",)
"""Columns whose names SQL needs in double quotes."""

# Where lists are unequal, unnest fills up with NULL: the condition at the end finds that, and
# times that record.decode refuses. It is a CASE because OR may evaluate its sides in any order.
UNNEST_SAMPLES = """(
    SELECT *, sample < warmup_samples AS warmup
    FROM (
        SELECT * EXCLUDE (rounds, calls_per_sample), entry.key AS phase,
            unnest(entry.value) AS ns, unnest(rounds) AS "round", unnest(calls_per_sample) AS calls,
            generate_subscripts(rounds, 1) - 1 AS sample
        FROM (SELECT *, unnest(map_entries(samples_ns)) AS entry FROM {rows})
    )
    WHERE CASE WHEN ns >= 1e-12 AND ns < 2 ** 63 AND "round" >= 0 AND calls >= 1 THEN true
        ELSE error('a sample is not valid') END
)"""

# A rank's time is that of all phases together.
UNNEST_RANKS = """(
    SELECT *, sample < warmup_samples AS warmup,
        list_sum([times[sample + 1] FOR times IN map_values(entry.samples_ns)]) AS ns
    FROM (
        SELECT * EXCLUDE (rounds), unnest(rounds) AS "round",
            unnest(entry.waiting_ns) AS waiting_ns, unnest(entry.transfer_ns) AS transfer_ns,
            generate_subscripts(rounds, 1) - 1 AS sample
        FROM (SELECT *, unnest(ranks) AS entry, generate_subscripts(ranks, 1) - 1 AS rank
            FROM {rows})
    )
    WHERE CASE WHEN waiting_ns >= 0 AND transfer_ns >= 0 AND "round" >= 0 THEN true
        ELSE error('a rank is not valid') END
)"""

# An instrumented run follows the sample of the same number, which is not one of warm-up.
UNNEST_REGIONS = """(
    SELECT *, split_part(region, '/', 1) AS phase, rounds[sample + 1] AS "round"
    FROM (
        SELECT * EXCLUDE (entry), entry.key AS region, entry.value.calls AS calls,
            unnest(entry.value.samples_ns) AS ns, unnest(instrumented_ns) AS run_ns,
            warmup_samples + generate_subscripts(instrumented_ns, 1) - 1 AS sample
        FROM (SELECT *, unnest(map_entries(regions)) AS entry FROM {rows})
    )
    WHERE CASE WHEN isfinite(ns) AND isfinite(run_ns) AND calls >= 1
            AND rounds[sample + 1] IS NOT NULL THEN true
        ELSE error('a region is not valid') END
)"""

UNNEST_CURVES = """(
    SELECT * FROM (
        SELECT * EXCLUDE (entry), entry.key AS curve, unnest(entry.value) AS "value",
            generate_subscripts(entry.value, 1) - 1 AS point
        FROM (SELECT *, unnest(map_entries(curves)) AS entry FROM {rows})
    )
    WHERE CASE WHEN isfinite("value") THEN true ELSE error('a curve is not valid') END
)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    warnings: list[str]


def query(
    paths: Sequence[Path],
    sql: str,
    skip_corrupt: bool = False,
    add_cases: Callable[[duckdb.DuckDBPyConnection, Sequence[Record]], None] | None = None,
) -> Result:
    """Run one SQL query over the records of all files; `add_cases` makes the view `cases` of them.

    Raises UsageError for a query that cannot be run, and what `store.read` raises for a file that
    cannot be read.
    """
    import duckdb

    if not paths:
        raise UsageError("there is no results file to query; name at least one")
    _refuse_other_than_utf8([*map(str, paths), sql])
    # By real path: the same file under two names would count its records twice.
    files = {os.path.realpath(path): path for path in paths}

    def prepare(connection: duckdb.DuckDBPyConnection) -> None:
        if add_cases is not None and CASES.search(sql):
            scanned = (scan(path, [], skip_corrupt=skip_corrupt) for path in files.values())
            add_cases(connection, [record for records in scanned for record in records])

    try:
        try:
            return _attempt(files, sql, skip_corrupt, prepare, in_place=True)
        except (duckdb.InvalidInputException, duckdb.IOException):
            # A line that DuckDB cannot parse, or one that a run is just writing.
            return _attempt(files, sql, skip_corrupt, prepare, in_place=False)
    except duckdb.Error as error:
        raise _explain(error) from None


def _attempt(
    files: dict[str, Path], sql: str, skip_corrupt: bool, prepare: Prepare, *, in_place: bool
) -> Result:
    """Query the files where they are, as far as they are fit for it, or copies of all."""
    warnings: list[str] = []
    lines: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="flopwatch-") as folder:
        for real, path in files.items():
            if in_place and _is_plain(path):
                lines[real] = path
            else:
                copy = Path(os.path.realpath(folder)) / f"{len(lines)}.jsonl"
                _rewrite(path, copy, warnings, skip_corrupt)
                lines[str(copy)] = path
        columns, rows = _run(lines, sql, folder, prepare)
    return Result(columns=columns, rows=rows, warnings=warnings)


def _rewrite(path: Path, copy: Path, warnings: list[str], skip_corrupt: bool) -> None:
    """Copy a file as this version of flopwatch would have written it."""
    try:
        with copy.open("wb") as file:
            for record in scan(path, warnings, skip_corrupt=skip_corrupt):
                file.write(encode(record) + b"\n")
    except OSError as error:
        raise StoreError(
            f"{path} must be copied to be queried, and {copy.parent} cannot be written "
            f"({error.strerror}); free some space there, or set TMPDIR to another folder"
        ) from None


def _is_plain(path: Path) -> bool:
    """Whether every line is whole and of this version, by the look of its end."""
    ending = b',"schema":%d}\n' % SCHEMA
    with reading(path) as file:
        return all(
            line.endswith(ending) for line in iter(lambda: file.readline(MAX_LINE_BYTES), b"")
        )


def _run(lines: dict[str, Path], sql: str, folder: str, prepare: Prepare) -> Rows:
    """Columns and rows of a query over the given files; DuckDB's own errors."""
    import duckdb

    with duckdb.connect() as connection:
        # Otherwise Python's variables would be tables, and large queries would spill into the
        # current folder.
        connection.execute("SET python_enable_replacements = false")
        connection.execute(f"SET temp_directory = {_quote(str(Path(folder) / 'spill'))}")
        _create_views(connection, lines)
        prepare(connection)
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
    types = ", ".join(f"{_quote(name)}: {_quote(kind)}" for name, kind in FIELDS.items())
    found, named = _list(lines), _list(map(str, lines.values()))
    rows = f"""(
        SELECT *, len(rounds) AS samples,
            list_extract({named}, list_position({found}, filename)) AS file
        FROM read_json({_list(map(glob.escape, lines))}, columns = {{{types}}},
            format = 'newline_delimited', compression = 'uncompressed', filename = true,
            maximum_object_size = {MAX_LINE_BYTES})
    )"""
    origins = {
        "records": rows,
        "samples": UNNEST_SAMPLES.format(rows=rows),
        "ranks": UNNEST_RANKS.format(rows=rows),
        "regions": UNNEST_REGIONS.format(rows=rows),
        "curves": UNNEST_CURVES.format(rows=rows),
    }
    for view, origin in origins.items():
        names = ", ".join(map(_name, VIEWS[view]))
        connection.execute(f"CREATE VIEW {view} AS SELECT {names} FROM {origin}")


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

    first, *others = str(error).strip().splitlines()
    message = first.partition(" Error: ")[2] or first
    advice = [line.lower() for line in others if line.startswith("Did you mean")]
    if isinstance(error, duckdb.ParserException):
        advice = [f"{', '.join(map(_name, RESERVED))} needs its double quotes"]
    elif any(sign in message for sign in ("column named", "Referenced", "Table with name")):
        views = (f"{view} ({', '.join(map(_name, names))})" for view, names in VIEWS.items())
        cases = "cases (the columns that --columns help lists)"
        advice = [f"there are {', '.join([*views, cases])}"]
    return UsageError("; ".join(["the query cannot be run: " + message.rstrip(" .!:"), *advice]))


def _refuse_other_than_utf8(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{text!r} is not UTF-8, which DuckDB needs; rename it") from None


def _name(column: str) -> str:
    return f'"{column}"' if column in RESERVED else column


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _list(texts: Iterable[str]) -> str:
    return "[" + ", ".join(map(_quote, texts)) + "]"
