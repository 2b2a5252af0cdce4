"""flopwatch run, as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from flopwatch.cli.measure import run, take_axes
from flopwatch.errors import UsageError
from tests.cli.test_main import assert_refused, flopwatch


def test_suites_are_listed(tmp_path: Path) -> None:
    assert "activations  Activation functions" in flopwatch("run", "--list", cwd=tmp_path).stdout
    listed = json.loads(flopwatch("run", "--list", "--json", cwd=tmp_path).stdout)
    assert {"name", "summary", "package"} == set(listed[0])


def drop_hints(text: str) -> list[str]:
    """Without the line that names the option or the command for the rest."""
    return [line for line in text.splitlines() if not line.startswith("  more with ")]


def test_init_run_show_query(tmp_path: Path) -> None:
    """The way of a newcomer."""
    assert flopwatch("run", "--new", "mine.py", cwd=tmp_path).returncode == 0
    dry = flopwatch("run", "mine.py", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0
    assert "tokens=256 width=768 dtype=float32: layer_norm, rms_norm" in dry.stdout
    assert "8 cases in 4 groups, about" in dry.stderr
    assert not (tmp_path / "results").exists()

    run = flopwatch("run", "mine.py", "--quick", "--case-budget", "0.5s", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "rms_norm" in run.stdout
    assert "records: results/mine.jsonl" in run.stderr
    assert "1/2 dtype=float32: 2 ok" in run.stderr

    shown = flopwatch("show", "results/mine.jsonl", cwd=tmp_path)
    more = "more with flopwatch show results/mine.jsonl -v: forward, backward"
    assert more in run.stdout
    assert drop_hints(shown.stdout) == drop_hints(run.stdout)
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


OWN_COLUMNS = """
import flopwatch

suite = flopwatch.Suite("mine", axes={"size": [1, 2]}, variants=["a", "b"])

@suite.build
def build(case):
    if case.variant == "b" and case.size == 2:
        raise flopwatch.Unsupported("no")
    return flopwatch.Workload(phases={"call": lambda: None}, facts={"joule": 3.0 * case.size})

@suite.column(unit="J")
def energy_j(row):
    "Energy of a run"
    return row.record.facts["joule"]

@suite.column(unit="share")
def of_second(row):
    '''Share of a second that a run takes.

    As a test that times are there.'''
    return row.total_ns.value / 1e9

@suite.column()
def grade(row):
    "A word"
    return "good" if row.record.variant == "a" else None

@suite.column()
def broken(row):
    "What cannot be computed"
    return 1 / 0
"""


def test_columns_that_a_suite_declares_are_everywhere_without_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_COLUMNS)
    done = flopwatch("run", "mine.py", "--case-budget", "0.2s", "-v", cwd=tmp_path)
    assert "energy" in done.stdout
    assert "the column 'broken' failed: ZeroDivisionError: division by zero" in done.stdout
    (tmp_path / "mine.py").unlink()
    show = ("show", "results/mine.jsonl")
    asked = flopwatch(*show, "--columns", "variant,size,energy_j,grade", "--format", "csv",
                      "--where", "energy_j < 5", cwd=tmp_path)  # fmt: skip
    assert asked.stdout.splitlines() == [
        "variant,size,energy_j,grade", "a,1,3.0,good", "b,1,3.0,"
    ]  # fmt: skip
    helped = flopwatch(*show, "--columns", "help", cwd=tmp_path).stdout
    assert "Share of a second that a run takes." in helped
    assert "As a test" not in helped
    pivot = "row=variant,col=size,value=energy_j"
    found = flopwatch(*show, "--pivot", pivot, "--format", "csv", cwd=tmp_path).stdout
    assert "a,3.0,6.0" in found
    content = json.loads(flopwatch(*show, "--json", cwd=tmp_path).stdout)
    assert content[0]["columns"]["energy_j"] == {
        "value": 3.0, "unit": "J", "meaning": "Energy of a run"
    }  # fmt: skip
    assert 0 < content[0]["columns"]["of_second"]["value"] < 1
    assert content[-1]["columns"] == {}  # it was not measured
    sql = "SELECT variant, energy_j FROM cases WHERE size = 2 ORDER BY variant"
    rows = json.loads(flopwatch("query", sql, "--json", cwd=tmp_path).stdout)
    assert rows == [{"variant": "a", "energy_j": 6.0}, {"variant": "b", "energy_j": None}]
    assert flopwatch("report", *show[1:], "-o", "page.html", cwd=tmp_path).returncode == 0
    assert "energy (J)" in (tmp_path / "page.html").read_text()


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
    # 7 rounds of warm-up, 8 measured, and 7 other runs.
    matmul_s = 2e16 / content["flops_per_s"]["float32"]
    assert content["expected_s"] == pytest.approx(22 * matmul_s / 0.7, rel=0.01)
    assert content["shortest_s"] < content["expected_s"] < content["longest_s"]
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


def test_options_of_a_job_choose_the_values_of_axes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={'seq_len': [8], 'precision': ['fp32']},\n"
        "    variants=['a'], accepts=lambda axis, value: True)\n"
        "@suite.build\ndef build(case):\n    return lambda: 1\n"
    )
    dry = ("run", "mine.py", "--dry-run")
    chosen = flopwatch(*dry, "--seq-len", "16,32", "--precision", "bf16-mixed", cwd=tmp_path)
    assert chosen.stdout == (
        "seq_len=16 precision=bf16-mixed: a\nseq_len=32 precision=bf16-mixed: a\n"
    )
    assert_refused(flopwatch(*dry, "--model", "small", cwd=tmp_path), "no axis 'model'")
    assert_refused(flopwatch(*dry, "--precision", "2%", cwd=tmp_path), "--target-interval 2%")


@pytest.mark.parametrize(
    ("words", "variants"),
    [
        (["--recompute", "none,full"], "variant=eager,recompute-full"),
        (
            ["--sharding", "none,full", "--recompute", "selective"],
            "variant=none+recompute-selective,full+recompute-selective",
        ),
        (["--compile", "--attention", "plain"], "variant=compiled+plain-attention"),
        (["--tp", "1,2"], "variant=none,tp2"),
        (
            ["--tp", "2", "--sequence-parallel", "no,yes", "--sharding", "full"],
            "variant=full+tp2,full+tp2+sp",
        ),
        (
            ["--pp", "1,2", "--schedule", "1f1b,ZBVZeroBubble", "--recompute", "full"],
            "variant=recompute-full,pp2+recompute-full,pp2:zbv+recompute-full",
        ),
        (["--pp", "2", "--virtual-stages", "2,3"], "variant=pp2:interleaved,pp2:interleaved:3"),
        (["--ep", "2", "--cp", "2"], "variant=cp2+ep2"),
    ],
)
def test_options_of_a_job_choose_variants(words: list[str], variants: str) -> None:
    given = run.make_context("run", ["training", *words]).params
    assert take_axes(given) == (variants,)
    assert "recompute" not in given


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--schedule", "gpipe"], "--schedule says how --pp does it; give --pp, too"),
        (["--sequence-parallel", "yes"], "give --tp, too"),
        (["--tp", "two"], "--tp 'two' is not a whole number"),
        (["--pp", "2", "--schedule", "backwards"], "there is no pipeline schedule 'backwards'"),
    ],
)
def test_options_that_divide_nothing_are_refused(words: list[str], reason: str) -> None:
    given = run.make_context("run", ["training", *words]).params
    with pytest.raises((click.UsageError, UsageError), match=reason):
        take_axes(given)


def test_a_seed_that_no_record_can_hold_is_refused(tmp_path: Path) -> None:
    refused = flopwatch("run", "activations", "--seed", str(2**64), cwd=tmp_path)
    assert refused.returncode == 2
    assert "'--seed': 18446744073709551616 is not in the range" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_parameters_that_are_data_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={'n': [list(range(200_000))]}, variants=['a'])\n"
        "@suite.build\ndef build(case): return lambda: None\n"
    )
    refused = flopwatch("run", "mine.py", "--dry-run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "a case of suite 'mine' has parameters of 1288" in refused.stderr
