"""The command line as a user meets it: real processes, their output and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flopwatch.cli import options
from flopwatch.cli.main import cli
from flopwatch.jobs.variants import OPTIMIZERS, PRECISIONS
from flopwatch.records.record import SCHEMA, encode
from tests.conftest import make_record


def flopwatch(
    *arguments: object, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flopwatch", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """One clear sentence on stderr, nothing on stdout, exit 2."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


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


def test_help_has_examples_and_imports_nothing_heavy(tmp_path: Path) -> None:
    result = flopwatch("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "flopwatch run activations --quick" in result.stdout
    program = (
        "import sys\nfrom flopwatch.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'duckdb', 'numpy', 'rich', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_has_help(tmp_path: Path, command: str) -> None:
    result = flopwatch(command, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "Usage: " in result.stdout


def test_suites_are_listed(tmp_path: Path) -> None:
    assert "activations  Activation functions" in flopwatch("suites", cwd=tmp_path).stdout
    listed = json.loads(flopwatch("suites", "--json", cwd=tmp_path).stdout)
    assert {"name", "summary"} == set(listed[0])


def test_init_run_show_query(tmp_path: Path) -> None:
    """The way of a newcomer."""
    assert flopwatch("suites", "--new", "mine.py", cwd=tmp_path).returncode == 0
    dry = flopwatch("run", "mine.py", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0
    assert "tokens=256 width=768 dtype=float32: layer_norm, rms_norm" in dry.stdout
    assert "8 cases in 4 groups, between" in dry.stderr
    assert not (tmp_path / "results").exists()

    run = flopwatch("run", "mine.py", "--quick", "--case-budget", "0.5s", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "rms_norm" in run.stdout
    assert "records: results/mine.jsonl" in run.stderr
    assert "1/2 tokens=256" in run.stderr

    shown = flopwatch("show", "results/mine.jsonl", cwd=tmp_path)
    assert shown.stdout == run.stdout
    rows = json.loads(flopwatch("show", "results/mine.jsonl", "--json", cwd=tmp_path).stdout)
    assert [row["variant"] for row in rows] == ["layer_norm", "rms_norm"] * 2
    assert all(row["status"] == "ok" for row in rows)

    sql = "SELECT variant, count(*) AS n FROM records GROUP BY ALL ORDER BY ALL"
    asked = json.loads(flopwatch("query", sql, "--json", cwd=tmp_path).stdout)
    assert asked == [{"variant": "layer_norm", "n": 2}, {"variant": "rms_norm", "n": 2}]
    assert "rms_norm" in flopwatch("query", sql, "results/mine.jsonl", cwd=tmp_path).stdout

    page = flopwatch("report", "results/mine.jsonl", "-o", "report.html", cwd=tmp_path)
    assert page.returncode == 0
    told = (tmp_path / "report.html").read_text()
    assert "rms_norm" in told
    assert "flopwatch run mine.py --quick --case-budget 0.5s" in told


def test_a_failed_case_gives_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={}, variants=['a', 'b'])\n"
        "@suite.build\ndef build(case):\n    return (lambda: 1) if case.variant == 'a' else 1 / 0\n"
    )
    result = flopwatch("run", "mine.py", "--case-budget", "0.2s", cwd=tmp_path)
    assert result.returncode == 1
    assert "b : crash: ZeroDivisionError" in result.stdout.replace("b: ", "b : ")


def test_a_dry_run_says_what_is_on_request(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={'level': ['layer', 'quality']},\n"
        "    variants=['a', 'b', 'c'], on_request={'level': ['quality'], 'variant': ['b', 'c']})\n"
        "@suite.build\ndef build(case):\n    return lambda: 1\n"
    )
    result = flopwatch("run", "mine.py", "--dry-run", cwd=tmp_path)
    assert result.stdout == "level=layer: a\n"
    assert result.stderr.endswith("on request: --filter level=quality --filter variant=b,c\n")
    options = ("--dry-run", "--json", "--filter", "level=quality")
    content = json.loads(flopwatch("run", "mine.py", *options, cwd=tmp_path).stdout)
    unknown = {"memory_bytes": {}, "misfit": None}
    assert content["cases"] == [{"params": {"level": "quality"}, "variant": "a", **unknown}]
    assert content["on_request"] == {"variant": ["b", "c"]}


def test_a_preset_is_measured_instead_of_the_suites_own_grid(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={'size': [1, 2], 'kind': ['a', 'b']},\n"
        "    variants=['plain'], on_request={'kind': ['b']}, accepts=lambda axis, value: True,\n"
        "    presets={'published': {'size': [10, 20], 'kind': ['a', 'b']}})\n"
        "@suite.build\ndef build(case):\n    return lambda: 1.0\n"
        "@suite.flops\ndef flops(case): return {'call': 1e15 * case.size}\n"
    )

    def dry(*options: str) -> subprocess.CompletedProcess[str]:
        return flopwatch("run", "mine.py", "--dry-run", *options, cwd=tmp_path)

    assert "other grids: --grid published" in dry().stderr
    told = dry("--grid", "published")
    assert told.stdout == "size=10 kind=a: plain\nsize=20 kind=a: plain\n"
    assert told.stderr.endswith("on request: --filter kind=b\n")  # and no other grids
    content = json.loads(dry("--grid", "published", "--json", "--filter", "size=20").stdout)
    (case,) = content["cases"]
    assert (case["params"], case["variant"]) == ({"size": 20, "kind": "a"}, "plain")
    assert content["grids"] == []
    assert content["shortest_s"] == pytest.approx(16 * 2e16 / content["flops_per_s"]["float32"])
    assert_refused(dry("--grid", "large"), "suite 'mine' has no grid 'large'; it has published\n")
    assert_refused(dry("--grid", "published", "--quick"), "--quick and --grid each choose a grid")
    run = flopwatch("run", "mine.py", "--grid", "published", "--case-budget", "0.2s", cwd=tmp_path)
    assert run.returncode == 0
    assert "2 cases in 2 groups, about" in run.stderr


def test_set_measures_other_values(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flopwatch\n"
        "def accept(axis, value):\n"
        "    if value == [0, 0]: raise flopwatch.UsageError('there is nothing in it')\n"
        "suite = flopwatch.Suite('mine', axes={'shape': [(1, 2), (3, 4)], 'kind': ['a', 'b']},\n"
        "    variants=['plain', 'odd'], on_request={'kind': ['b']}, accepts=accept)\n"
        "@suite.build\ndef build(case):\n    return lambda: float(case.shape[0])\n"
    )
    run = ("run", "mine.py", "--case-budget", "0.2s", "--set", "shape=5x6")
    dry = flopwatch(*run, "--dry-run", "--set", "variant=new", "--set", "kind=b", cwd=tmp_path)
    assert dry.stdout == "shape=5x6 kind=b: plain, new\n"
    assert "on request" not in dry.stderr

    assert flopwatch(*run, cwd=tmp_path).returncode == 0
    again = flopwatch(*run, "--set", "variant=new", cwd=tmp_path)
    assert "1 cases are in results/mine.jsonl already" in again.stderr  # the baseline
    rows = json.loads(flopwatch("show", "results/mine.jsonl", "--json", cwd=tmp_path).stdout)
    assert [(row["variant"], row["params"]["shape"]) for row in rows] == [
        ("plain", [5, 6]),
        ("odd", [5, 6]),
        ("new", [5, 6]),
    ]
    assert_refused(
        flopwatch("run", "mine.py", "--set", "shape=0x0", cwd=tmp_path),
        "flopwatch: --set shape=0x0: there is nothing in it\n",
    )


def test_show_says_what_was_found(results: Path) -> None:
    shown = flopwatch("show", results, cwd=results.parent)
    assert shown.returncode == 0
    assert "demo size=4 dtype=float32" in shown.stdout
    assert "2.00x [2.00, 2.00]" in shown.stdout
    assert "c size=4 dtype=float32: oom: needs 3 TiB [of memory]" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "activation"], ["no suite 'activation'", "did you mean 'activations'"]),
        (["run", "missing.py"], ["no suite file missing.py", "flopwatch suites --new missing.py"]),
        (["run", "broken.py"], ["broken.py, line 2 is not valid Python", "suite = ("]),
        (["run", "raises.py"], ["raises.py cannot be loaded", "ValueError: on purpose"]),
        (["run", "activations", "--filter", "size=3"], ["no axis 'size'", "shape, dtype, variant"]),
        (["run", "activations", "--filter", "dtype=int8"], ["no value 'int8'", "float32"]),
        (["run", "activations", "--filter", "dtype"], ["not of the form axis=value"]),
        (["run", "activations", "--budget", "soon"], ["'soon' is not a duration", "10m"]),
        (["run", "activations", "--set", "dtype=float16"], ["knows only its own values"]),
        (["run", "activations", "--set", "dtype"], ["--set 'dtype' is not of the form axis=value"]),
        (["run", "activations", "--budget", "1s"], ["a budget of 1s cannot hold 30 cases"]),
        (["run", "activations", "--memory-limit", "lots"], ["'lots' is not a size"]),
        (["run", "activations", "--target-interval", "0"], ["'0' is not a percentage"]),
        (["run", "activations", "--threads", "0"], ["0 is not in the range"]),
        (["run", "activations", "--device", "tpu"], ["'tpu' is not one of"]),
        (["run", "activations", "--device", "cuda"], ["no CUDA device here"]),
        (["run", "activations", "--out", "/proc/nowhere/x.jsonl"], ["cannot be written"]),
        (["run", "nothing.py"], ["no case of suite 'nothing' is left"]),
        (["show", "missing.jsonl"], ["missing.jsonl does not exist"]),
        (["query", "SELECT 1"], ["no results in results/ here"]),
        (["suites", "--new", "broken.py"], ["broken.py exists already"]),
        (["suites", "--new", "my-suite.py"], ["is no name for a suite file"]),
        (["frobnicate"], ["No such command 'frobnicate'"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "broken.py").write_text("import flopwatch\nsuite = (\n")
    (tmp_path / "raises.py").write_text("import flopwatch\nraise ValueError('on purpose')\n")
    (tmp_path / "nothing.py").write_text(
        "import flopwatch\nsuite = flopwatch.Suite('nothing', axes={}, variants=['a'],"
        " where=lambda case: False)\nsuite.build(lambda case: None)\n"
    )
    assert_refused(flopwatch(*arguments, cwd=tmp_path), *words)


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
    assert_refused(result, "line 2 is corrupt", "3 other records are intact", "--skip-corrupt")
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


def test_output_into_a_closed_pipe_is_no_traceback(results: Path) -> None:
    command = f"{sys.executable} -m flopwatch show {results} | true"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_a_full_disk_stops_the_run_with_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={'n': list(range(5))}, variants=['a'])\n"
        "@suite.build\ndef build(case):\n    return lambda: 1\n"
    )
    # 8 blocks of 1024 bytes: room for a record or two.
    command = f"ulimit -f 8; {sys.executable} -m flopwatch run mine.py --case-budget 0.2s"
    # Coverage writes a file of its own, which would not fit either.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert "everything stored before is safe" in result.stderr
    assert "Traceback" not in result.stderr
    kept = flopwatch("show", "results/mine.jsonl", cwd=tmp_path)
    assert kept.returncode == 0


def test_doctor(tmp_path: Path) -> None:
    result = flopwatch("doctor", cwd=tmp_path)
    assert result.returncode == 0
    for word in ("torch", "instruction set", "cores", "allocator"):
        assert word in result.stdout
    content = json.loads(flopwatch("doctor", "--json", cwd=tmp_path).stdout)
    assert {"environment", "advice", "jitter"} <= set(content)


def test_choices_of_commands_are_those_of_models() -> None:
    """They are written out, so that help need not load the layers."""
    assert set(PRECISIONS) <= set(options.PRECISIONS)
    assert OPTIMIZERS == options.OPTIMIZERS
