"""SQL over results files, by DuckDB.

Six views show all the files at once:

    records   one row a record; params, settings, environment and the like are JSON, so that an
              axis is reached by ``params->>'dtype'``
    samples   one row a sample and phase, warm-up included and marked
    ranks     one row a rank of a job and sample
    regions   one row a region and instrumented run
    curves    one row a point of a curve
    steps     one row a step and rank of a monitored run, with its parts

A caller may add a seventh, ``cases``, of what analysis makes of the records.

    SELECT suite, variant, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL

Every record is validated as by every other command, and what passes is written to a temporary
folder that DuckDB reads. So a query never counts what `store.read` refuses, and a run that is
appending to the file does not change it under the query.

A query may only read. The files hold measurements that cannot be had again, and a query is often
pasted from somewhere else. It runs in a thread of its own, so that Ctrl-C and a time limit end it,
whatever it does.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import psutil

from flopwatch.errors import StoreError, UsageError
from flopwatch.records.record import Record, encode
from flopwatch.records.step_rows import COLUMNS as STEP_COLUMNS
from flopwatch.records.step_rows import drop_steps, list_step_rows
from flopwatch.records.store import MAX_LINE_BYTES, scan

if TYPE_CHECKING:
    import duckdb

Answer = TypeVar("Answer")
AddCases = Callable[["duckdb.DuckDBPyConnection", Sequence[Record]], None]

TIMES_BY_NAME = "MAP(VARCHAR, DOUBLE[])"
SQL_TYPES = {
    **dict.fromkeys(("str", "str | None", "Status", "Kind"), "VARCHAR"),
    **dict.fromkeys(("Cause | None", "Stop | None"), "VARCHAR"),
    **dict.fromkeys(("int", "Count", "Count | None"), "BIGINT"),
    **dict.fromkeys(("list[int]", "list[Count]", "list[Calls]"), "BIGINT[]"),
    **dict.fromkeys(("dict[str, list[Time]]", "dict[str, list[float]]"), TIMES_BY_NAME),
    "bool | None": "BOOLEAN",
    "list[str]": "VARCHAR[]",
    "list[PartTime]": "DOUBLE[]",
    "list[Rank]": (
        f"STRUCT(samples_ns {TIMES_BY_NAME}, waiting_ns DOUBLE[], transfer_ns DOUBLE[], "
        "overlapped_ns DOUBLE[], bubble_ns DOUBLE[])[]"
    ),
    "dict[str, Region]": "MAP(VARCHAR, STRUCT(calls BIGINT, samples_ns DOUBLE[]))",
}
"""By the type of a record's field, as it is written there; every other is JSON."""

FIELDS = {field.name: SQL_TYPES.get(str(field.type), "JSON") for field in fields(Record)}
"""Declared, not inferred: inference reads a part of every file twice, and files with different
parameters would get different types."""

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
    "ranks": (
        *(*OF_RECORD, "rank", "sample", "round", "warmup", "ns"),
        *("waiting_ns", "transfer_ns", "overlapped_ns", "bubble_ns"),
    ),
    "regions": (*OF_RECORD, "phase", "region", "calls", "sample", "round", "ns", "run_ns"),
    "curves": (*OF_RECORD, "curve", "point", "value"),
    "steps": tuple(STEP_COLUMNS),
}

TIMEOUT_S = 300.0
MEMORY_BYTES = 4 * 2**30
"""DuckDB's own limit, 80 % of the memory, leaves next to nothing for whatever else is running."""
SPILL = 4
CHUNK_ROWS = 1000
"""Of an answer: after each, its size is looked at."""
LESS = "allow more with --memory-limit, or ask for less"
MOST_ROWS = 10_000_000
"""Of an answer, which is held in memory as Python objects."""
ENDING_S = 2.0
"""How long DuckDB may take to notice an interrupt. It looks for one between chunks of rows, but one
call of a function may take hours: what has not ended by then ends with the process."""
ENDLESS: list[Future[Any]] = []
"""Answers of queries that had to be ended, and may not have."""

CASES = re.compile(r"\bcases\b", re.IGNORECASE)
"""In a query that needs the view: nothing is summarized for others."""

STEPS = re.compile(r"\bsteps\b", re.IGNORECASE)
"""Likewise: the steps of a long run are many."""

RESERVED = ("check",)
"""Columns whose names SQL needs in double quotes."""

UNNEST_SAMPLES = """(
    SELECT * EXCLUDE (rounds, calls_per_sample), entry.key AS phase,
        unnest(entry.value) AS ns, unnest(rounds) AS "round", unnest(calls_per_sample) AS calls,
        generate_subscripts(rounds, 1) - 1 AS sample, sample < warmup_samples AS warmup
    FROM (SELECT *, unnest(map_entries(samples_ns)) AS entry FROM {rows})
)"""

# A rank's time is that of all phases together.
UNNEST_RANKS = """(
    SELECT *, sample < warmup_samples AS warmup,
        list_sum([times[sample + 1] FOR times IN map_values(entry.samples_ns)]) AS ns
    FROM (
        SELECT * EXCLUDE (rounds), unnest(rounds) AS "round",
            unnest(entry.waiting_ns) AS waiting_ns, unnest(entry.transfer_ns) AS transfer_ns,
            unnest(entry.overlapped_ns) AS overlapped_ns,
            unnest(entry.bubble_ns) AS bubble_ns,
            generate_subscripts(rounds, 1) - 1 AS sample
        FROM (SELECT *, unnest(ranks) AS entry, generate_subscripts(ranks, 1) - 1 AS rank
            FROM {rows})
    )
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
)"""

UNNEST_CURVES = """(
    SELECT * EXCLUDE (entry), entry.key AS curve, unnest(entry.value) AS "value",
        generate_subscripts(entry.value, 1) - 1 AS point
    FROM (SELECT *, unnest(map_entries(curves)) AS entry FROM {rows})
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
    add_cases: AddCases | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    memory_limit_bytes: int | None = None,
) -> Result:
    """Run one SQL query over the records of all files; `add_cases` makes the view `cases` of them.
    DuckDB holds at most `memory_limit_bytes`, and writes the rest to the temporary folder, up to
    `SPILL` times as much.

    Raises UsageError for a query that cannot be run, and what `store.read` raises for a file that
    cannot be read.
    """
    import duckdb

    if not paths:
        raise UsageError("there is no results file to query; name at least one")
    _refuse_other_than_utf8([*map(str, paths), sql])
    if not CASES.search(sql):
        add_cases = None
    with_steps = STEPS.search(sql) is not None
    limit_bytes = memory_limit_bytes or find_memory_limit()
    warnings: list[str] = []
    kept: list[Record] = []
    copies: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="flopwatch-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        steps = folder / "steps.jsonl"
        # By real path: the same file under two names would count its records twice.
        for path in {os.path.realpath(path): path for path in paths}.values():
            copy = folder / f"{len(copies)}.jsonl"
            with _writing(path, copy) as file, _writing(path, steps, "ab") as step_file:
                for record in scan(path, warnings, skip_corrupt=skip_corrupt):
                    file.write(encode(drop_steps(record)) + b"\n")
                    step_file.writelines(list_step_rows(record) if with_steps else ())
                    if add_cases is not None:
                        kept.append(record)
            copies[str(copy)] = path
        try:
            with connecting(limit_bytes) as connection:
                _create_views(connection, copies, steps)
                if add_cases is not None:
                    add_cases(connection, kept)
                _lock_down(connection, folder, [*copies, str(steps)])
                columns, rows = run_bounded(
                    connection, lambda: _run(connection, sql, limit_bytes), timeout_s
                )
        except TimeoutError:
            raise UsageError(
                f"the query was ended after {timeout_s:g} s; ask for less, or allow more with "
                "--timeout"
            ) from None
        except duckdb.Error as error:
            raise _explain(error) from None
        except MemoryError:
            raise UsageError(f"the answer does not fit into memory; {LESS}") from None
    return Result(columns=columns, rows=rows, warnings=warnings)


def find_memory_limit() -> int:
    """Of a query, where the user sets none."""
    available_bytes: int = psutil.virtual_memory().available
    return min(MEMORY_BYTES, available_bytes // 2)


@contextlib.contextmanager
def _writing(path: Path, copy: Path, mode: str = "wb") -> Iterator[IO[bytes]]:
    try:
        with copy.open(mode) as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"{path} must be copied to be queried, and {copy.parent} cannot be written "
            f"({error.strerror}); free some space there, or set TMPDIR to another folder"
        ) from None


@contextlib.contextmanager
def connecting(limit_bytes: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory. Closing it would wait for a query that does not end."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET memory_limit = '{limit_bytes} bytes'")
    connection.execute(f"SET max_temp_directory_size = '{SPILL * limit_bytes} bytes'")
    try:
        yield connection
    finally:
        if not is_running():
            connection.close()


def run_bounded(
    connection: duckdb.DuckDBPyConnection, run: Callable[[], Answer], timeout_s: float = TIMEOUT_S
) -> Answer:
    """What `run` returns, which uses the connection. After the time limit, which is a TimeoutError,
    and at Ctrl-C the query is ended."""
    answer: Future[Answer] = Future()

    def work() -> None:
        try:
            answer.set_result(run())
        except BaseException as error:
            answer.set_exception(error)

    deadline_s = time.monotonic() + timeout_s
    try:
        threading.Thread(target=work, daemon=True).start()
        while not answer.done() and time.monotonic() < deadline_s:
            # In short turns: a signal that comes just before a wait is only seen after it.
            wait([answer], min(0.1, timeout_s))
        return answer.result(0)
    except (TimeoutError, KeyboardInterrupt):
        for _ in range(10):  # one that comes before the query has begun is forgotten
            connection.interrupt()
            wait([answer], ENDING_S / 10)
        ENDLESS.append(answer)
        raise


def is_running() -> bool:
    """Whether a query goes on that could not be ended."""
    return any(not answer.done() for answer in ENDLESS)


def _run(
    connection: duckdb.DuckDBPyConnection, sql: str, limit_bytes: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows."""
    import duckdb

    statements = connection.extract_statements(sql)
    # COPY could overwrite a file, even though DuckDB may open no other.
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            "a query must be one statement that reads: SELECT, WITH, FROM, DESCRIBE, SUMMARIZE "
            "or PIVOT with its values named by IN"
        )
    process = psutil.Process()
    most_bytes = process.memory_info().rss + 2 * limit_bytes  # DuckDB's, and as much for the answer
    cursor = connection.execute(statements[0])
    rows: list[tuple[Any, ...]] = []
    while chunk := cursor.fetchmany(CHUNK_ROWS):
        rows += chunk
        if len(rows) > MOST_ROWS:
            raise UsageError(
                f"the answer has more than {MOST_ROWS:,} rows; let SQL add them up, or add a LIMIT"
            )
        if process.memory_info().rss > most_bytes:
            raise MemoryError
    return [column[0] for column in cursor.description or ()], rows


def _create_views(
    connection: duckdb.DuckDBPyConnection, lines: dict[str, Path], steps: Path
) -> None:
    found, named = _list(lines), _list(map(str, lines.values()))
    rows = f"""(
        SELECT *, len(rounds) AS samples,
            list_extract({named}, list_position({found}, filename)) AS file
        FROM {_read_json(lines, FIELDS)}
    )"""
    origins = {
        "records": rows,
        "samples": UNNEST_SAMPLES.format(rows=rows),
        "ranks": UNNEST_RANKS.format(rows=rows),
        "regions": UNNEST_REGIONS.format(rows=rows),
        "curves": UNNEST_CURVES.format(rows=rows),
        "steps": _read_json([str(steps)], STEP_COLUMNS),
    }
    for view, origin in origins.items():
        names = ", ".join(map(_name, VIEWS[view]))
        connection.execute(f"CREATE VIEW {view} AS SELECT {names} FROM {origin}")


def _read_json(files: Iterable[str], columns: Mapping[str, str]) -> str:
    types = ", ".join(f"{_quote(name)}: {_quote(kind)}" for name, kind in columns.items())
    return f"""read_json({_list(map(glob.escape, files))}, columns = {{{types}}},
        format = 'newline_delimited', compression = 'uncompressed', filename = true,
        maximum_object_size = {MAX_LINE_BYTES})"""


def _lock_down(connection: duckdb.DuckDBPyConnection, folder: Path, files: list[str]) -> None:
    """Let a query see the results files and nothing else: no other file, no network, no variable.

    A query that somebody was sent could otherwise read a private key into its result, or have
    DuckDB fetch an extension.
    """
    # DuckDB compares the pattern that a view names, not only the file that it finds by it.
    allowed = _list([*files, *map(glob.escape, files)])
    for setting in (
        "python_enable_replacements = false",
        f"temp_directory = {_quote(str(folder / 'spill'))}",  # not the current folder
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        f"allowed_paths = {allowed}",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def _explain(error: duckdb.Error) -> UsageError:
    """DuckDB's message, which may be a page, as one sentence."""
    import duckdb

    first, *others = str(error).strip().splitlines()
    message = first.partition(" Error: ")[2] or first
    advice = [line.lower() for line in others if line.startswith("Did you mean")]
    if isinstance(error, duckdb.ParserException):
        advice = [f"{', '.join(map(_name, RESERVED))} needs its double quotes"]
    elif isinstance(error, duckdb.OutOfMemoryException):
        advice = [LESS]
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
