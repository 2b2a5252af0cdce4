"""SQL over the columns of results, by DuckDB: which cases to show, in what order, and queries.

A condition is any expression of SQL over the columns. It may come from anywhere: DuckDB sees one
table in memory, no file, no network and no variable of ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwatch.analysis.summary import Row, summarize
from flopwatch.errors import UsageError
from flopwatch.output.columns import Columns, describe_near, find_column, list_columns
from flopwatch.output.tables import Column
from flopwatch.records.query import Result, connecting, find_memory_limit, query, run_bounded
from flopwatch.records.record import Record
from flopwatch.suites.case import format_value

if TYPE_CHECKING:
    import duckdb

LOCKS = (
    "SET python_enable_replacements = false",
    "SET temp_directory = ''",  # nothing is written
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
ONE_CONDITION = "--where must be one condition, as in --where \"status = 'ok'\""
UNKNOWN = re.compile(r'Referenced column "(.*?)" (?:was )?not found')


def select_rows(
    rows: Sequence[Row], known: Columns, where: str | None = None, sort: str | None = None
) -> list[Row]:
    """The rows that a condition holds for, sorted by chosen: ``-speedup,variant``, where a minus
    means descending. What is not known comes last. Raises UsageError for what cannot be run."""
    if where is None and sort is None:
        return list(rows)
    import duckdb

    _refuse_no_text(where)
    order = [_order_by(known, name) for name in (sort or "").split(",") if name.strip()]
    if sort is not None and not order:
        raise UsageError("--sort names no column; write it as in --sort -speedup,variant")
    # On lines of its own, so that a comment in it does not swallow what follows.
    condition = f"WHERE (\n{where}\n)" if where is not None else ""
    position = _name_position(known)
    sql = f"SELECT {position} FROM cases {condition} ORDER BY {', '.join([*order, position])}"
    with connecting(find_memory_limit()) as connection:
        try:
            places = (position, "BIGINT", list(range(len(rows))))
            _create_cases(connection, [places, *_list_typed(rows, known)])
            for lock in LOCKS:
                connection.execute(lock)
            statement = _parse(connection, sql)
            found = run_bounded(connection, lambda: connection.execute(statement).fetchall())
        except TimeoutError:
            raise UsageError(f"the condition {where!r} takes too long; write it anew") from None
        except duckdb.Error as error:
            raise _explain(error, known, where) from None
    positions = [position for (position,) in found]
    if not set(positions) <= set(range(len(rows))) or len(set(positions)) < len(positions):
        raise UsageError(ONE_CONDITION)  # brackets that end early, and a query of its own
    return [rows[position] for position in positions]


def _refuse_no_text(where: str | None) -> None:
    if where is None:
        return
    try:
        where.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the condition {where!r} is not UTF-8; write it anew") from None
    if not where.strip():
        raise UsageError(ONE_CONDITION)


def _order_by(known: Columns, name: str) -> str:
    descending = name.strip().startswith("-")
    column = find_column(known, name.strip().removeprefix("-"))
    return f"{_quote(column.name)} {'DESC' if descending else 'ASC'} NULLS LAST"


def query_results(
    paths: Sequence[Path], sql: str, skip_corrupt: bool = False, **limits: Any
) -> Result:
    """One SQL query over files of results, with the view `cases`: a row a case, all columns.
    `limits` are those of `query`."""

    def add_cases(connection: duckdb.DuckDBPyConnection, records: Sequence[Record]) -> None:
        rows = summarize(records)
        _create_cases(connection, _list_typed(rows, list_columns(rows)))

    return query(paths, sql, skip_corrupt, add_cases, **limits)


def _list_typed(rows: Sequence[Row], known: Columns) -> list[tuple[str, str, list[Any]]]:
    """Name, DuckDB's type and values of every column."""
    return [(column.name, *_type_values(column, rows)) for column in known.values() if column.name]


def _create_cases(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[tuple[str, str, list[Any]]]
) -> None:
    listed = ", ".join(f"unnest(?::{kind}[]) AS {_quote(name)}" for name, kind, _ in columns)
    connection.execute(f"CREATE TABLE cases AS SELECT {listed}", [values for *_, values in columns])


def _name_position(known: Columns) -> str:
    """A column that says which row it is, and has no column's name."""
    name, taken = "position", {column.casefold() for column in known}
    while name in taken:
        name += "_"
    return name


def _type_values(column: Column[Row], rows: Sequence[Row]) -> tuple[str, list[Any]]:
    """DuckDB's type for a column and its values: of text, where not all are alike."""
    values: list[Any] = [column.find_value(row) for row in rows]
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "BOOLEAN", values
    if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
        return "BIGINT", values
    if (kinds and kinds <= {int, float}) or (not kinds and not column.is_word):
        return "DOUBLE", values
    return "VARCHAR", [None if value is None else format_value(value) for value in values]


def _parse(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    import duckdb

    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(ONE_CONDITION)
    return statements[0]


def _explain(error: duckdb.Error, known: Columns, where: str | None) -> UsageError:
    """DuckDB's message, which may be a page, as one sentence."""
    first = str(error).strip().splitlines()[0]
    message = (first.partition(" Error: ")[2] or first).rstrip(" .!:")
    unknown = UNKNOWN.search(message)
    if unknown is None:
        return UsageError(
            f"the condition {where!r} cannot be run: {message}; write it as in --where "
            "\"tokens >= 1024 and variant like 'dyad%'\""
        )
    name = unknown[1]
    return UsageError(
        f"the condition {where!r} names {name!r}, and there is no such column"
        f"{describe_near(known, name)}; --columns help lists all, and text stands in single quotes"
    )


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
