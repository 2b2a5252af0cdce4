"""A tiny package of plug-ins, really installed by pip into a folder of its own, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flopwatch import read
from flopwatch.plugins import find_plugins, load_plugin
from tests.cli.test_main import assert_refused
from tests.cli.test_main import flopwatch as run_flopwatch

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.xdist_group("plugins")  # they share what takes long to make

FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-plugins"
version = "1.0"

[project.entry-points."flopwatch.suites"]
sums = "tiny_plugins.sums"
steps = "tiny_plugins.sums"
ghost = "tiny_plugins.ghost"
garbled = "tiny_plugins.garbled"

[project.entry-points."flopwatch.layers"]
low-rank = "tiny_plugins.low_rank"
silent = "tiny_plugins.numbers"
leaving = "tiny_plugins.leaving"

[project.entry-points."flopwatch.devices"]
abacus = "tiny_plugins.devices:ABACUS"
others = "tiny_plugins.devices:OTHERS"
again = "tiny_plugins.devices:AGAIN"
number = "tiny_plugins.devices:NUMBER"

[tool.setuptools]
packages = ["tiny_plugins"]
""",
    "tiny_plugins/__init__.py": "",
    "tiny_plugins/numbers.py": "SIZES = [100, 3000]\n",
    "tiny_plugins/garbled.py": "this is no Python\n",
    "tiny_plugins/leaving.py": "raise SystemExit(3)\n",
    "tiny_plugins/sums.py": '''\
"""Sums of numbers, by a generator and by a range."""

import flopwatch

from .numbers import SIZES

suite = flopwatch.Suite("sums", axes={"size": SIZES}, variants=["generator", "range"])


@suite.build
def build(case):
    if case.variant == "range":
        return lambda: sum(range(case.size))
    return lambda: sum(n for n in range(case.size))
''',
    "tiny_plugins/low_rank.py": """\
from torch import nn

from flopwatch.layers import register


def make(in_features, out_features, rank, *, bias, device, dtype):
    options = {"device": device, "dtype": dtype}
    narrow = nn.Linear(in_features, rank, bias=False, **options)
    return nn.Sequential(narrow, nn.Linear(rank, out_features, bias=bias, **options))


register("low-rank", make)
""",
    "tiny_plugins/devices.py": """\
from dataclasses import replace

from flopwatch.devices.device_table import Device, Figure, Link, Rates
from flopwatch.jobs.precision import Peak

SHEET = "Abacus data sheet, 2026"
ABACUS = Device(
    name="Abacus-1",
    drivers=("Abacus One",),
    rates=Rates(dense={"bfloat16": Peak(flops_per_s=500e12, source=SHEET)}),
    memory_gb=Figure(96, SHEET),
    bandwidth_gb_per_s=Figure(4000, SHEET),
    link=Link("beads", 600, SHEET),
)
OTHERS = (replace(ABACUS, name="Abacus-2", drivers=()), replace(ABACUS, name="B", drivers=()))
AGAIN = replace(ABACUS, name="h100 sxm", drivers=())
NUMBER = replace(ABACUS, name="Abacus-3", drivers=(), memory_gb=96)
""",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it is installed into."""
    source = tmp_path_factory.mktemp("tiny")
    for name, text in FILES.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    target = tmp_path_factory.mktemp("installed")
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--target", str(target), str(source)],
        check=True,
        capture_output=True,
    )
    return target


def run(installed: Path, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(installed)])
    return run_flopwatch(*words, cwd=cwd, PYTHONPATH=path)


END = "; update tiny-plugins or uninstall it"


def list_sentences(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in done.stderr
    return sorted(done.stderr.splitlines())


def test_suites_are_listed_and_broken_ones_cost_a_sentence(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, "run", "--list", cwd=tmp_path)
    assert listed.returncode == 0
    assert "sums         Sums of numbers, by a generator and by a range. (tiny-plugins)" in (
        listed.stdout.splitlines()
    )
    assert list_sentences(listed) == [
        "flopwatch: the suite 'garbled' of tiny-plugins cannot be used: garbled.py, line 1 is not "
        f"valid Python (invalid syntax): this is no Python{END}",
        "flopwatch: the suite 'ghost' of tiny-plugins cannot be used: there is no file of the "
        f"module tiny_plugins.ghost{END}",
        "flopwatch: the suite 'steps' of tiny-plugins cannot be used: flopwatch has a suite of "
        f"that name{END}",
    ]
    found = json.loads(run(installed, "run", "--list", "--json", cwd=tmp_path).stdout)
    assert {each["package"] for each in found} == {None, "tiny-plugins"}
    assert [each["name"] for each in found].count("steps") == 1


def test_a_suite_runs_by_its_name(installed: Path, tmp_path: Path) -> None:
    words = ("run", "sums", "--quick", "--case-budget", "0.1s", "--out", "sums.jsonl")
    done = run(installed, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = read(tmp_path / "sums.jsonl").records
    assert {record.variant for record in records} == {"generator", "range"}
    # A change of a module next to it is a change of what is measured.
    assert all(set(record.sources) > {"sums.py", "numbers.py"} for record in records)
    again = run(installed, *words, cwd=tmp_path)
    assert "2 cases are in sums.jsonl already" in again.stderr


def test_a_broken_suite_is_an_error_where_it_is_asked_for(installed: Path, tmp_path: Path) -> None:
    refused = run(installed, "run", "ghost", cwd=tmp_path)
    assert_refused(refused, "the suite 'ghost' of tiny-plugins cannot be used: there is no file")
    assert_refused(run(installed, "run", "sum", cwd=tmp_path), "did you mean 'sums'")


def test_devices_are_listed_and_predicted_for(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, "peaks", "--list", "--json", cwd=tmp_path)
    assert listed.returncode == 0
    names = [device["name"] for device in json.loads(listed.stdout)]
    assert names[-3:] == ["Abacus-1", "Abacus-2", "B"]
    assert list_sentences(listed) == [
        "flopwatch: the device 'again' of tiny-plugins cannot be used: there is a device "
        f"'h100 sxm' already{END}",
        "flopwatch: the device 'number' of tiny-plugins cannot be used: it is no Device, nor "
        f"several (Expected `object | null`, got `int` - at `$.memory_gb`){END}",
    ]
    assert "Abacus data sheet" in run(installed, "peaks", "abacus one", cwd=tmp_path).stdout
    words = ("--model", "7b", "--seq-len", 2048, "--micro-batch", 4, "--hardware", "8xAbacus-1")
    (predicted,) = json.loads(run(installed, "predict", *words, "--json", cwd=tmp_path).stdout)
    assert predicted["predicted_tokens_per_s"] > 0


def test_a_layer_is_measured_in_a_suite(installed: Path, tmp_path: Path) -> None:
    words = ("--filter", "level=layer", "--set", "tokens=16", "--set", "shape=64x32")
    done = run(
        installed, "run", "dyad", *words, "--filter", "dtype=float32", "--case-budget", "0.1s",
        "--set", "variant=dense,low-rank:4", "--out", "dyad.jsonl", cwd=tmp_path,
    )  # fmt: skip
    records = {record.variant: record for record in read(tmp_path / "dyad.jsonl").records}
    low_rank = records["low-rank:4"]
    assert (done.returncode, low_rank.status) == (0, "ok"), done.stderr
    assert any(name.endswith("tiny_plugins/low_rank.py") for name in low_rank.sources)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ("leaving", "the layer 'leaving' of tiny-plugins cannot be used: SystemExit: 3"),
        ("silent", "tiny_plugins.numbers does not call register('silent', ...)"),
        ("absent", "no layer is called 'absent'; there are dense, dyad, switchback"),
    ],
)
def test_a_broken_layer_is_an_error_where_it_is_asked_for(
    installed: Path, tmp_path: Path, layer: str, sentence: str
) -> None:
    words = ("run", "dyad", "--filter", "level=layer", "--set", f"variant=dense,{layer}")
    assert_refused(run(installed, *words, cwd=tmp_path), sentence)


def test_of_two_plugins_with_one_name_the_first_counts(
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = tmp_path / "other-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[flopwatch.layers]\nlow-rank = nowhere.at_all\n")
    for folder in (tmp_path, installed):
        monkeypatch.syspath_prepend(folder)
    find_plugins.cache_clear()
    try:
        found = find_plugins("flopwatch.layers")["low-rank"]
        assert found.value == "tiny_plugins.low_rank"
        assert load_plugin(found).make
        assert "'low-rank' of other cannot be used: tiny-plugins has a plug-in" in caplog.text
    finally:
        find_plugins.cache_clear()
