"""Queries that cannot be run, and those that must not."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from flopwatch.errors import UsageError
from flopwatch.records import query as query_module
from flopwatch.records.query import connecting, is_running, query, run_bounded
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


ENDLESS = "SELECT count(*) FROM range(1000000) a, range(10000000) b"
"""Hours of work in little memory."""
LIMIT_BYTES = 2**28


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_an_endless_query_ends_at_its_time_limit(path: Path, temporary: Path) -> None:
    with pytest.raises(UsageError, match=r"ended after 0\.2 s; .*--timeout"):
        query([path], ENDLESS, timeout_s=0.2)
    assert not is_running()
    assert list(temporary.iterdir()) == []


def test_a_query_ends_at_ctrl_c() -> None:
    with connecting(LIMIT_BYTES) as connection:
        started = threading.Event()

        def run() -> object:
            started.set()
            return connection.execute(ENDLESS).fetchall()

        def interrupt() -> None:
            started.wait()
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            run_bounded(connection, run)
        assert not is_running()


def test_what_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB does not look for an interrupt within a call of a function."""
    monkeypatch.setattr(query_module, "ENDING_S", 0.01)
    go_on = threading.Event()
    with pytest.raises(TimeoutError), connecting(LIMIT_BYTES) as connection:
        run_bounded(connection, go_on.wait, 0.01)
    assert is_running()
    connection.execute("SELECT 1")  # it was not closed, which would wait
    go_on.set()
    query_module.ENDLESS[-1].result(60)
    assert not is_running()


def test_memory_is_limited(path: Path, temporary: Path) -> None:
    with pytest.raises(UsageError, match="allow more with --memory-limit"):
        query([path], "SELECT list(range) FROM range(100000000)", memory_limit_bytes=50 * 2**20)
    assert list(temporary.iterdir()) == []


def test_an_answer_has_not_too_many_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "MOST_ROWS", 10)
    assert len(query([path], "FROM range(10)").rows) == 10
    with pytest.raises(UsageError, match="more than 10 rows; .* LIMIT"):
        query([path], "FROM range(11)")
