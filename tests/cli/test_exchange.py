"""flopwatch published, import and export, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flopwatch.cli.main import cli
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.records.published import PUBLICATIONS, load, read_text
from flopwatch.records.store import read


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["published", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return str(done.stdout)


def test_published_benchmarks_are_listed() -> None:
    shown = run()
    assert all(name in shown for name in PUBLICATIONS)
    listed = json.loads(run("--json"))
    assert [row["name"] for row in listed] == list(PUBLICATIONS)
    assert [row["records"] for row in listed] == [31, 994, 25, 87]


def test_a_published_benchmark_is_shown_with_what_to_mind() -> None:
    shown = run("dyad")
    assert "unclear, not comparable" in shown
    assert "source: DYAD, arXiv 2312.06881, 2023; a GPU, not stated which" in shown
    assert "not stated: the GPU; versions of software" in shown
    assert "1.10 times as fast as dense, not 3.22 times" in shown
    assert "hot cache" not in shown


def test_parts_are_left_to_the_published_layout() -> None:
    assert "parts:" not in run("switchback")
    assert run("switchback", "--layout", "published") == read_text("switchback")


def test_published_json_has_either_layout() -> None:
    plain = json.loads(run("cs336", "--json"))
    assert (plain["name"], len(plain["rows"])) == ("cs336", 25)
    rows = json.loads(run("mosaic", "--json", "--layout", "published"))["rows"]
    assert (rows[0]["cluster"], rows[0]["tokens_per_s"]) == ("r1z1", pytest.approx(8659.76))


def test_a_published_benchmark_is_written_once(tmp_path: Path) -> None:
    out = tmp_path / "dyad.jsonl"
    run("dyad", "-o", str(out))
    assert read(out).records == load("dyad")
    with pytest.raises(FlopwatchError, match="is there already; choose another name"):
        run("dyad", "-o", str(out))
    with pytest.raises(FlopwatchError, match="cannot be written"):
        run("dyad", "-o", str(tmp_path / "none" / "dyad.jsonl"))


def test_published_refuses_contradictions() -> None:
    with pytest.raises(
        UsageError,
        match="no published benchmark is called 'gpt'; there are dyad, switchback, cs336, mosaic",
    ):
        run("gpt")
    with pytest.raises(UsageError, match="-o and --layout are for one benchmark"):
        run("--layout", "published")
    with pytest.raises(UsageError, match="leave --json and --layout out"):
        run("dyad", "-o", "dyad.jsonl", "--json")
