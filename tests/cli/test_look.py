"""flopwatch show, query and explain, as a user calls them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flopwatch.analysis.step_breakdown import StepBreakdown, make_breakdown
from flopwatch.analysis.summary import summarize
from flopwatch.cli.main import main
from flopwatch.output.breakdown_tables import MOST_CASES, make_page_sheets
from flopwatch.output.page import render_page
from flopwatch.records.record import SCHEMA, Record, encode
from tests.analysis.test_step_breakdown import make_job, make_layer
from tests.analysis.test_verdicts import sample
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record
from tests.plot_tools import BREAKDOWN, add_peaks, make_step


def write(path: Path, records: Sequence[Record]) -> str:
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return str(path)


@pytest.fixture
def steps(tmp_path: Path) -> str:
    return write(tmp_path / "steps.jsonl", BREAKDOWN)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main(["explain", *words])
    assert isinstance(leave.value.code, int)
    return leave.value.code


def read_table(text: str) -> list[str]:
    """Its lines, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines()]


GOLDEN = """\
steps model=decoder:hidden_size=64:layers=2:vocabulary=256 micro_batch=8 seq_len=32 precision=fp32 \
optimizer=adamw, breakdown
variant part time share to gain bound by basis
eager total 10.0 ms 100.0 % measured
eager matmuls at the peak 2.26 ms 22.6 % 0 compute counted
eager matmuls: lost to shape 1.21 ms 12.1 % 1.21 ms compute predicted
eager attention 2.21 ms 22.1 % 2.13 ms compute measured
eager element-wise at full bandwidth 878 µs 8.8 % 0 memory counted
eager loss at full bandwidth 78.6 µs 0.8 % 0 memory counted
eager memory: beyond the least 1.50 ms 15.0 % 1.50 ms memory predicted
eager optimizer 1.00 ms 10.0 % 540 µs memory measured
eager launches and framework 3.00 ms 30.0 % 3.00 ms overhead predicted
eager faster than predicted −2.14 ms −21.4 % 0 unknown left
"""


def test_the_table(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(steps, "--where", "variant = 'eager'") == 0
    lines = read_table(capsys.readouterr().out)
    assert lines[0].startswith("eager takes 10.0 ms: the largest part is launches and framework")
    lines = lines[lines.index("") + 1 :]
    assert "\n".join(lines[: GOLDEN.count("\n")]) + "\n" == GOLDEN
    assert lines[-2:] == [
        "counted: FLOPs over the peak, bytes over the bandwidth; predicted: by the cost model; to "
        "gain: at the most, the time above the ideal",
        "counted with float32 100 GFLOP/s (measured here on 2026-11-16: a float32 matmul of "
        "8x8x8), memory 10.0 GB/s (measured here: triad); the cost model's parameters are "
        "expected ones, not fitted here",
    ]


def test_more_than_was_measured(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(steps, "--where", "variant = 'compiled'") == 0
    assert "faster than predicted −" in "\n".join(read_table(capsys.readouterr().out))


def test_unsteady_runs_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = add_peaks(make_record(samples_ns={"call": [1e6] * 9 + [2e6] * 11}), 1e11, 1e10)
    assert run(write(tmp_path / "busy.jsonl", [record])) == 0
    assert "a: its fastest run took 1.00 ms, and the median 2.00 ms: what other work" in (
        capsys.readouterr().out
    )


def test_the_roofline(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(steps, "--roofline", "--most", "1") == 0
    out = "\n".join(read_table(capsys.readouterr().out))
    assert "1 more case like that: `flopwatch explain --most 2`" in out
    assert "variant operation time FLOPs/byte reached limit limit by" in out
    assert "eager optimizer 1.00 ms 0.43" in out


def test_no_roofline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "bare.jsonl", [make_record()]), "--roofline") == 0
    assert "there is no roofline" in capsys.readouterr().err


def test_json(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(steps, "--json") == 0
    eager, compiled = json.loads(capsys.readouterr().out)
    assert math.fsum(row["time_ns"] for row in eager["rows"]) == eager["total_ns"] == 10e6
    assert eager["limits"]["bandwidth_bytes_per_s"] == 1e10
    assert {o["name"] for o in eager["operations"]} > {"forward", "backward", "optimizer"}
    assert compiled["rows"][-1]["name"] == "faster than predicted"


def test_jobs_and_what_has_no_peaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "jobs.jsonl", [make_job()])) == 0
    out = "\n".join(read_table(capsys.readouterr().out))
    assert "ddp transfer between ranks 2.00 ms 20.0 % 2.00 ms network measured" in out
    assert "ddp computing 6.50 ms 65.0 % unknown measured" in out
    assert "run `flopwatch peaks`, then measure again, and matmuls have rows" in out


def test_a_machine_in_another_state_moves_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (
        [
            sample(ns * machine, name, seed=seed)
            for name, ns in (("dense", 1e6), ("fast", 5e5), ("slow", 2e6))
        ]
        for seed, machine in ((1, 1.0), (2, 0.1))
    )
    assert run(write(tmp_path / "old.jsonl", old), write(tmp_path / "new.jsonl", new)) == 0
    words = "all cases, baselines included, took 90 % less time: the machine was in another state"
    assert words in capsys.readouterr().out


def test_two_files(steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = {**BREAKDOWN[0].samples_ns, "optimizer": [3e6] * 20}
    later = replace(BREAKDOWN[0], samples_ns=slow, run_id="later", regions={}, instrumented_ns=[])
    new = write(tmp_path / "new.jsonl", [later])
    assert run(steps, new) == 0
    lines = read_table(capsys.readouterr().out)
    assert lines[1:3] == ["of the", "variant part old new change change"]
    assert lines[3] == "eager total 10.0 ms 12.0 ms +2.00 ms 100.0 %"
    assert any(line.startswith("eager optimizer 1.00 ms 3.00 ms +2.00 ms 100.0") for line in lines)
    assert "1 case only in the old results: compiled" in "\n".join(lines)
    assert lines[-1] == "`flopwatch compare` says which changes are more than noise"
    assert run(steps, new, "--json") == 0
    (movement,) = json.loads(capsys.readouterr().out)["movements"]
    assert movement["change_ns"] == pytest.approx(2e6)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{steps}", "{steps}", "{steps}"], "explain takes one file or two, an old and a new one"),
        (["{steps}", "{steps}", "--roofline"], "--roofline is for one file"),
        (["{steps}", "--where", "variant = 'x'"], "no case was measured for which"),
        (["{steps}", "--where", "nobody = 1"], "there is no such column"),
        (["{empty}"], "nothing to explain: no case was measured; measure some with:"),
        (["{failed}"], "nothing to explain: no case was measured; measure some with:"),
        (["{steps}", "{other}"], "no case was measured in both files"),
        (["{missing}"], "missing.jsonl"),
        ([], "Missing argument"),
    ],
)
def test_what_is_refused(
    words: list[str], sentence: str, steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = make_record(status="crash", samples_ns={}, rounds=[], calls_per_sample=[])
    files = {
        "steps": steps,
        "empty": write(tmp_path / "empty.jsonl", []),
        "failed": write(tmp_path / "failed.jsonl", [failed]),
        "other": write(tmp_path / "other.jsonl", [make_record()]),
        "missing": str(tmp_path / "missing.jsonl"),
    }
    assert run(*(word.format(**files) for word in words)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert sentence in " ".join(told.err.split())


# The page


def test_the_page_has_the_breakdown() -> None:
    page = render_page(BREAKDOWN)
    assert ">breakdown</h3>" in page
    assert "Where the time goes, compared with what the hardware allows" in page
    assert "matmuls at the peak" in page
    assert ">breakdown</h3>" not in render_page([make_record()])


def test_a_page_makes_few_breakdowns_of_many_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [
        add_peaks(make_layer(case_id=str(n), group_id=str(n), measured_at=f"{n:06}"), 1e11, 1e10)
        for n in range(3000)
    ]
    many = [
        replace(record, params={**record.params, "tokens": n + 1})
        for n, record in enumerate(layers)
    ]
    rows = summarize(many)
    explained: list[Record] = []

    def explain(record: Record) -> StepBreakdown | None:
        explained.append(record)
        return make_breakdown(record)

    monkeypatch.setattr("flopwatch.output.breakdown_tables.make_breakdown", explain)
    (sheet,) = make_page_sheets(rows)
    assert len(explained) == MOST_CASES
    assert len(sheet.groups) == MOST_CASES
    assert sheet.remarks[0] == "2,988 more cases like that: `flopwatch explain --most 3000`"


def test_a_step_without_peaks_is_no_plot_of_limits() -> None:
    assert "beside what the hardware allows" not in render_page([make_step()])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    records = [
        make_record(case_id="1", params={"size": 4, "dtype": "float32"}),
        make_record(
            case_id="2",
            variant="b",
            params={"size": 4, "dtype": "float32"},
            samples_ns={"call": [50.0] * 20},
        ),
        make_record(
            case_id="3",
            variant="c",
            params={"size": 4, "dtype": "float32"},
            status="oom",
            message="needs 3 TiB [of memory]",
            samples_ns={},
            rounds=[],
            calls_per_sample=[],
            steady=None,
            stop_reason=None,
        ),
    ]
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


def test_show_says_what_was_found(results: Path) -> None:
    shown = flopwatch("show", results, cwd=results.parent)
    assert shown.returncode == 0
    assert "demo size=4 dtype=float32" in shown.stdout
    assert "2.00x [2.00, 2.00]" in shown.stdout
    assert "c size=4 dtype=float32: oom: needs 3 TiB [of memory]" in shown.stdout


@pytest.mark.parametrize("command", ["show", "query", "run"])
def test_a_corrupt_file_names_its_line_and_what_is_kept(results: Path, command: str) -> None:
    lines = results.read_bytes().splitlines(keepends=True)
    damaged = lines[0] + b"garbage\n" + b"".join(lines[1:])
    results.write_bytes(damaged)
    arguments = {
        "show": ["show", results],
        "query": ["query", "SELECT variant FROM records", results],
        "run": ["run", "activations", "--quick", "--out", results],
    }[command]
    result = flopwatch(*arguments, cwd=results.parent)
    kept = "nothing was changed" if command == "run" else "3 other records are intact"
    assert_refused(result, "line 2", kept, "--skip-corrupt")
    assert results.read_bytes() == damaged
    if command != "run":
        result = flopwatch(*arguments, "--skip-corrupt", cwd=results.parent)
        assert result.returncode == 0
        assert "line 2 was skipped" in result.stderr


def test_a_newer_file_is_refused(results: Path) -> None:
    newer = results.read_text().replace(f'"schema":{SCHEMA}', f'"schema":{SCHEMA + 1}')
    results.write_text(newer)
    for arguments in (["show", results], ["query", "SELECT 1 FROM records", results]):
        assert_refused(
            flopwatch(*arguments, cwd=results.parent), f"schema {SCHEMA + 1}", "upgrade flopwatch"
        )


def test_a_torn_line_is_told_and_the_rest_is_read(results: Path) -> None:
    whole = results.read_bytes()
    results.write_bytes(whole + whole[:100])
    result = flopwatch("show", results, cwd=results.parent)
    assert result.returncode == 0
    assert "line 4, the last, is cut short" in result.stderr
    assert "2.00x" in result.stdout


def test_wrong_sql_is_one_sentence(results: Path) -> None:
    result = flopwatch("query", "SELECT speed FROM records", results, cwd=results.parent)
    assert_refused(result, "speed", "suite")
    assert_refused(flopwatch("query", "SELEKT", results, cwd=results.parent), "SELEKT")


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        # Hours of work in little memory.
        ("SELECT count(*) FROM range(1000000) a, range(10000000) b", signal.SIGTERM),
        # One call of a function, in which DuckDB does not look for an interrupt.
        ("SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))", signal.SIGINT),
    ],
)
def test_a_signal_ends_any_query(
    results: Path, tmp_path: Path, sql: str, number: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "flopwatch", "query", sql, str(results)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    # The query runs once it has used more time than all that comes before it.
    while sum(psutil.Process(process.pid).cpu_times()[:2]) < 3 or not list(temporary.iterdir()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1].strip() == "flopwatch: interrupted"
    assert process.returncode == 130
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000000000) a, range(1000000000000) b",  # spilled
        "SELECT repeat('x', 100000000) FROM range(1000)",  # not counted by DuckDB
        "SELECT range, repeat('y', 100) FROM range(9000000)",  # objects of Python
    ],
)
def test_the_memory_of_a_query_is_limited(results: Path, sql: str) -> None:
    limits = ("--memory-limit", "50M", "--timeout", "60s")
    # In a process of its own, which may have to end with the query.
    result = flopwatch("query", sql, *limits, results, cwd=results.parent, PYTHONUTF8="1")
    assert_refused(result, "allow more with --memory-limit, or ask for less")


def test_output_into_a_closed_pipe_is_no_traceback(results: Path) -> None:
    command = f"{sys.executable} -m flopwatch show {results} | true"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_warmup_is_a_table_of_its_own(results: Path) -> None:
    assert_refused(
        flopwatch("show", results, "--warmup", "--columns", "variant", cwd=results.parent),
        "leave --columns out",
    )
    assert_refused(
        flopwatch("show", results, "--warmup", "--format", "csv", cwd=results.parent),
        "--warmup has no format csv",
    )
