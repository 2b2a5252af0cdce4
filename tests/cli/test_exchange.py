"""Published benchmarks in the place of results, and export, as a user calls them."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import flopwatch
from flopwatch.cli.main import cli
from flopwatch.errors import FlopwatchError, StoreError, UsageError
from flopwatch.records import store
from flopwatch.records.published import PUBLICATIONS, load, read_text
from flopwatch.records.store import read


def run(*arguments: str) -> tuple[str, str]:
    """What is printed to stdout and to stderr."""
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout, done.stderr


def show(*arguments: str) -> str:
    return run("show", *arguments)[0]


def test_published_benchmarks_are_listed() -> None:
    shown = show("published")
    assert [name for name in PUBLICATIONS if name not in shown] == []
    assert "DYAD, arXiv 2312.06881" in shown
    listed = json.loads(show("published", "--json"))
    assert [row["name"] for row in listed] == list(PUBLICATIONS)
    assert [row["records"] for row in listed] == [31, 994, 25, 87]
    assert listed[0]["unknown"][0] == "the GPU"
    assert show("published", "--format", "csv").startswith("name,what,source,year,records,hardware")


def test_a_published_benchmark_is_shown_with_what_to_mind() -> None:
    shown = show("published:dyad", "-v")
    assert "unclear, not comparable" in shown
    assert "source: DYAD, arXiv 2312.06881, 2023; a GPU, not stated which" in shown
    assert "not stated: the GPU; versions of software" in shown
    assert "1.10 times as fast as dense, not 3.22 times" in shown
    assert "hot cache" not in shown


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_a_published_benchmark_is_printed_as_its_authors_did(name: str) -> None:
    shown, said = run("show", f"published:{name}", "--layout", "published")
    assert "not stated: " in said
    assert "not stated: " not in shown
    if name == "switchback":
        assert shown == read_text(name)


def test_parts_are_left_to_the_published_layout() -> None:
    shown, said = run("show", "published:switchback")
    assert "parts:" not in shown
    assert "568 published times of parts are left out; --layout published has them" in said
    assert len(json.loads(show("published:switchback", "--json"))) == 994


def test_published_json_has_either_layout() -> None:
    assert len(json.loads(show("published:cs336", "--json"))) == 25
    rows = json.loads(show("published:mosaic", "--json", "--layout", "published"))
    assert (rows[0]["cluster"], rows[0]["tokens_per_s"]) == ("r1z1", pytest.approx(8659.76))


def test_the_published_layout_is_that_of_one_suite() -> None:
    with pytest.raises(UsageError, match="these results are of 2 published layouts; choose from"):
        show("published:dyad", "published:mosaic", "--layout", "published")
    shown = show("published:dyad", "published:mosaic", "--layout", "dyad")
    assert shown.startswith(show("published:dyad", "--layout", "published"))


@pytest.mark.parametrize(
    "words",
    [
        ["query", "SELECT count(*) AS n, any_value(file) AS file FROM records", "published:mosaic"],
        ["explain", "published:mosaic", "--most", "1"],
        ["check", "published:mosaic"],
        ["compare", "published:dyad"],
        ["compare", "published:switchback", "--break-even", "--axis", "tokens"],
        ["plot", "published:mosaic", "--list"],
        ["report", "published:dyad", "-o", "-"],
        ["export", "published:dyad", "--format", "pyperf"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_reads_published_results(words: list[str]) -> None:
    assert run(*words)[0]


def test_python_reads_published_results() -> None:
    assert flopwatch.read("published:dyad").records == load("dyad")


def test_published_results_are_only_read(tmp_path: Path) -> None:
    (tmp_path / "dyad.txt").write_text(read_text("dyad"))
    words = ["import", str(tmp_path / "dyad.txt"), "--format", "dyad", "-o", "published:dyad"]
    with pytest.raises(FlopwatchError, match="published:dyad is a published benchmark, and only"):
        run(*words)


def test_import_says_that_it_waits_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SAY_LOCKED_S", 0.0)
    monkeypatch.setattr(store, "LOCKED_LIMIT_S", 0.2)
    text, out = tmp_path / "theirs.txt", tmp_path / "out.jsonl"
    text.write_text(read_text("dyad"))
    with out.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        command = ["import", str(text), "--format", "dyad", "-o", str(out)]
        done = CliRunner().invoke(cli, command)
    assert done.stderr == f"flopwatch: waiting for the lock on {out}, which another run holds\n"
    assert isinstance(done.exception, StoreError)
    assert "end that process, or write to another file" in str(done.exception)


def test_records_are_exported_to_a_new_results_file(tmp_path: Path) -> None:
    out = tmp_path / "both.jsonl"
    words = ["export", "published:dyad", "published:cs336", "--format", "flopwatch", "-o"]
    run(*words, str(out))
    assert read(out).records == [*load("dyad"), *load("cs336")]
    with pytest.raises(
        FlopwatchError, match="exists and is not empty; choose another, or remove it"
    ):
        run(*words, str(out))
    with pytest.raises(FlopwatchError, match="cannot be written"):
        run(*words, str(tmp_path / "none" / "dyad.jsonl"))
