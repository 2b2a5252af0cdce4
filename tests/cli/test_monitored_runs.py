"""What commands make of monitored runs, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flopwatch.cli.main import main
from flopwatch.settings import Settings
from tests.cli.test_look import write
from tests.monitor_tools import H100, MS, Loop, make_stalled_run

ON_GPU = {"settings": Settings(device="cuda"), "environment": H100}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """In a folder with two monitored runs: exit code, stdout with single spaces, stderr."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "old.jsonl", make_stalled_run(**ON_GPU))
    slower = Loop(400, seed=9, ranks=4)
    for parts in slower.parts_ns:
        parts["data"] += 8 * MS
    new = slower.record(**ON_GPU, case_id="n", variant="new", baseline="new", run_id="n")
    write(tmp_path / "new.jsonl", [new])

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leave:
            main(list(words))
        out, err = capsys.readouterr()
        assert isinstance(leave.value.code, int)
        return leave.value.code, " ".join(out.split()), " ".join(err.split())

    return call


def test_show_answers_first_and_then_has_narrow_tables(run: Run) -> None:
    code, out, _ = run("show", "old.jsonl")
    assert code == 0
    start, _, tables = out.partition("the mean step")
    assert "% MFU (exact, nominal peak 989 TFLOP/s bfloat16)" in start
    assert "Rank 2 makes the others wait for" in start
    assert "5 slow steps lost" in start
    assert "training" in tables
    assert "rank 3 came late" in tables
    code, out, _ = run("show", "old.jsonl", "-v")
    assert "FLOPs from the training job, convention exact" in out
    code, out, _ = run("show", "old.jsonl", "--columns", "variant,mfu,hfu,goodput,slow_steps")
    assert code == 0
    assert "run 0.0 % 0.0 %" in out


def test_compare_says_which_part_moved_and_what_the_interval_does_not_cover(run: Run) -> None:
    code, out, _ = run("compare", "old.jsonl", "new.jsonl")
    assert code == 0
    assert "what moved: data +" in out
    assert "the steps of two runs are not interleaved" in out
    assert "not comparable" not in out
    code, out, _ = run("compare", "old.jsonl", "new.jsonl", "--json")
    (change,) = json.loads(out)["monitored"]
    moved = {part["name"] for part in change["parts"] if part["has_moved"]}
    assert "data" in moved
    code, _, err = run("compare", "old.jsonl", "new.jsonl", "--fail-if-slower", "5%")
    assert code == 1
    assert "slower" in err
    code, out, _ = run("compare", "old.jsonl", "old.jsonl")
    assert "no part of it moved for certain" in out


def test_one_file_has_nothing_to_compare_and_says_what_to_do(run: Run) -> None:
    code, _, err = run("compare", "old.jsonl")
    assert code == 3
    assert "name an old and a new file" in err


def test_check_lists_what_the_run_loses(run: Run) -> None:
    code, out, err = run("check", "old.jsonl", "new.jsonl", "--json")
    assert code == 0
    kinds = {warning["kind"] for warning in json.loads(out)}
    assert {"straggler", "low-goodput", "did-not-finish", "data-bound"} <= kinds
    assert run("check", "old.jsonl", "--strict")[0] == 1


def test_every_reader_of_records_takes_them(run: Run, tmp_path: Path) -> None:
    assert run("report", "old.jsonl", "new.jsonl", "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert 'id="monitor-2"' in page
    assert page.count('<figure class="plot') == 8
    code, out, _ = run("plot", "old.jsonl", "-o", "run.json")
    assert code == 0
    assert "Steps over time" in (tmp_path / "run.json").read_text()
    sql = "SELECT variant, slow_steps, goodput > 0.3 AS fine FROM cases"
    assert "run 5 True" in run("query", sql, "old.jsonl")[1]
    for form in ("pyperf", "pytorch", "github-action-smaller", "github-action-bigger", "flopwatch"):
        code, out, err = run("export", "old.jsonl", "--format", form)
        assert (code, bool(out)) == (0, True), err
    for words in (["explain"], ["show", "--warmup"], ["show", "--format", "csv"]):
        assert run(words[0], "old.jsonl", *words[1:])[0] == 0
    for command in ("validate", "calibrate"):
        assert run(command, "old.jsonl")[0] == 2
