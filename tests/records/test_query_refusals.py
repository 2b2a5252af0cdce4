"""Queries that cannot be run, and those that must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flopwatch.errors import UsageError
from flopwatch.records.query import query
from tests.records.test_query import RECORDS, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "results.jsonl", *RECORDS)


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT speed FROM samples", r'"speed" not found.*samples \(case_id, group_id,.* ns\)'),
        ("SELECT samples.speed FROM samples", r'"speed"; there are records \(case_id.*phase'),
        (
            "FROM results",
            r"results does not exist; there are records \(case_id.*, samples \(case_id.*, curves",
        ),
        ("SELECT medain(ns) FROM samples", 'medain does not exist; did you mean "median"'),
        ("SELECT check FROM records", '"check" needs its double quotes'),
        ("SELEC 1", "syntax error"),
        ("SELECT CAST(variant AS INTEGER) FROM records", "Could not convert string 'd"),
        ("SELECT error('boo')", "boo"),
        ("SELECT '\ud800'", "not UTF-8"),
        ("", "one statement that reads"),
        ("SELECT 1; SELECT 2", "one statement that reads"),
        ("CREATE TABLE t (i INTEGER)", "one statement that reads"),
        ("SET threads = 1", "one statement that reads"),
        ("SELECT * FROM sql", "sql does not exist"),  # no variable of ours is a table
    ],
)
def test_a_wrong_query_is_explained_in_one_line(path: Path, sql: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        query([path], sql)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{path}' (USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{path}' (USE_TMP_FILE false)",
        "COPY (PIVOT (SELECT 1 a, 2 b) ON a USING sum(b)) TO '{path}' (USE_TMP_FILE false)",
        "SELECT 1; COPY (SELECT 1) TO '{path}' (USE_TMP_FILE false)",
        "ATTACH '{folder}/new.db'",
        "EXPORT DATABASE '{folder}/new'",
        "INSTALL httpfs",
        "SELECT * FROM read_text('{folder}/secret')",
        "SELECT * FROM glob('{folder}/*')",
        "FROM '{folder}/secret.csv'",
        "SELECT * FROM read_csv('https://example.org/x.csv')",
    ],
)
def test_a_query_touches_nothing_but_the_results(path: Path, sql: str) -> None:
    before = path.read_bytes()
    folder = path.parent
    (folder / "secret").write_text("key")
    (folder / "secret.csv").write_text("key\n1\n")
    with pytest.raises(UsageError):
        query([path], sql.format(path=path, folder=folder))
    assert path.read_bytes() == before
    assert sorted(os.listdir(folder)) == ["results.jsonl", "secret", "secret.csv"]
