"""The pytest plug-in in real runs of pytest, each in a process and a folder of its own."""

from __future__ import annotations

import json
import os
from inspect import signature
from pathlib import Path
from typing import get_args

import pytest

from flopwatch import __version__, compare, measure, pytest_plugin, read
from flopwatch.analysis.statistics import Verdict
from flopwatch.pytest_fixture import CompareOptions, MeasureOptions
from flopwatch.records.record import Record
from tests.cli.test_main import flopwatch as run_flopwatch
from tests.entry_points import write_entry_points

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent
SPEED = """
import pytest

def little():
    return sum(range(50))

def much():
    return sum(range(5000))

@pytest.mark.flopwatch(threshold=0.5)
def test_speed(flopwatch):
    result = flopwatch.compare({"little": little, "much": much})
    assert result.verdict("much") != "slower"
"""
SIZES = """
import pytest

@pytest.mark.flopwatch(budget_s=0.1)
@pytest.mark.parametrize("size", [10, 20, 30, 40])
def test_sizes(flopwatch, size):
    assert flopwatch.measure(lambda: sum(range(size))).time_ns.value > 0
"""
PLAIN = "def test_plain():\n    pass\n"


@pytest.fixture
def folder(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """Empty, with the plug-in."""
    write_entry_points(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "src")]))
    monkeypatch.setenv("COLUMNS", "120")
    return pytester


def run_pytest(folder: pytest.Pytester, *words: str) -> pytest.RunResult:
    return folder.runpytest_subprocess("-p", "no:cacheprovider", *words)


def read_section(done: pytest.RunResult) -> list[str]:
    """The lines of ours at the end."""
    lines = done.outlines
    (start,) = [n for n, line in enumerate(lines) if line.strip("=") == " flopwatch "]
    end = next(n for n in range(start + 1, len(lines)) if lines[n].startswith("="))
    return lines[start + 1 : end]


def read_saved(folder: pytest.Pytester) -> list[Record]:
    contents = read(folder.path / "saved.jsonl")
    assert contents.warnings == []
    return contents.records


def test_a_failed_comparison_shows_its_table_and_ends_in_a_sentence(
    folder: pytest.Pytester,
) -> None:
    folder.makepyfile(test_speed=SPEED, test_plain=PLAIN)
    done = run_pytest(folder, "--flopwatch-save", "saved.jsonl", "-W", "error", "--strict-markers")

    assert done.ret == 1, done.stdout.str()
    assert "1 failed, 1 passed" in done.stdout.str()
    (failed,) = [line for line in done.outlines if line.startswith("FAILED")]
    assert "assert 'slower' != 'slower': much is " in failed
    assert "- flopwatch -" in done.stdout.str()
    assert "99 % intervals; results not compared" in done.stdout.str()
    answer, records = read_section(done)
    assert answer.startswith("test_speed.py::test_speed: much is ")
    assert "x slower than little (" in answer
    assert records == "records: saved.jsonl"


def test_records_are_whole(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_speed=SPEED)
    run_pytest(folder, "--flopwatch-save", "saved.jsonl")

    little, much = read_saved(folder)
    assert (little.suite, little.params) == ("test_speed.py", {"test": "test_speed"})
    assert (little.variant, much.variant, much.baseline) == ("little", "much", "little")
    assert little.group_id == much.group_id
    assert little.case_id != much.case_id
    assert much.rounds == list(range(len(much.rounds)))
    assert len(much.samples_ns["call"]) == len(much.calls_per_sample) == len(much.rounds) > 10
    assert max(little.calls_per_sample) > 1
    assert 0 < much.warmup_samples < len(much.rounds)
    assert much.settings.allocator == "default"
    assert much.settings.threads == much.environment["torch"]["threads"]
    assert much.environment["command"][0] == "pytest"
    assert much.environment["command"][-2:] == ["--flopwatch-save", "saved.jsonl"]
    assert much.environment["software"]["flopwatch"] == __version__
    assert {"machine", "load", "allocator"} <= set(much.environment)


def test_saved_files_are_shown_compared_and_reported(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_speed=SPEED)
    run_pytest(folder, "--flopwatch-save", "old.jsonl")
    folder.makepyfile(test_speed=SPEED.replace("range(5000)", "range(200000)"))
    run_pytest(folder, "--flopwatch-save", "new.jsonl")

    shown = run_flopwatch("show", "old.jsonl", cwd=folder.path)
    assert "test_speed.py test=test_speed" in shown.stdout
    gate = ("compare", "old.jsonl", "new.jsonl", "--fail-if-slower", "3%")
    judged = run_flopwatch(*gate, cwd=folder.path)
    assert judged.returncode == 1, judged.stdout + judged.stderr
    assert "slower, or no longer measured: much test=test_speed" in judged.stderr
    report = run_flopwatch("report", "old.jsonl", "new.jsonl", "-o", "page.html", cwd=folder.path)
    assert report.returncode == 0, report.stderr
    assert "test_speed.py" in (folder.path / "page.html").read_text()


def test_parameters_are_axes_and_measurements_are_told_apart(folder: pytest.Pytester) -> None:
    text = """
import pytest

def one():
    return 1

@pytest.mark.flopwatch(budget_s=0.05)
class TestAll:
    @pytest.mark.parametrize(("size", "kind"), [(4, "a"), (8, "b")])
    def test_plain_values(self, flopwatch, size, kind):
        flopwatch.measure(one)
        flopwatch.measure(one)
        flopwatch.measure(one, name="again")

    @pytest.mark.parametrize("function", [len, sum])
    def test_objects(self, flopwatch, function):
        flopwatch.measure(one)
        with pytest.raises(Exception, match="a measurement 'x' already"):
            for _ in range(2):
                flopwatch.measure(one, name="x")
"""
    folder.makepyfile(test_names=text)
    done = run_pytest(folder, "--flopwatch-save", "saved.jsonl")

    assert "4 passed" in done.stdout.str()
    params = [record.params for record in read_saved(folder)]
    plain = {"test": "TestAll::test_plain_values", "size": 4, "kind": "a"}
    assert params[:3] == [plain, {**plain, "measurement": "2"}, {**plain, "measurement": "again"}]
    assert params[-2:] == [
        {"test": "TestAll::test_objects[sum]"},
        {"test": "TestAll::test_objects[sum]", "measurement": "x"},
    ]
    assert len({record.case_id for record in read_saved(folder)}) == 10


def test_workers_of_xdist_save_into_one_file(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_a=SIZES, test_b=SIZES, test_plain=PLAIN)
    done = run_pytest(folder, "-n", "2", "--flopwatch-save", "saved.jsonl")

    assert done.ret == 0, done.stdout.str()
    *answers, disturbed, records = read_section(done)
    assert len(answers) == 8
    assert disturbed.startswith("measured in 2 processes at once")
    assert records == "records: saved.jsonl"
    saved = read_saved(folder)
    assert {(r.suite, r.params["size"]) for r in saved} == {
        (suite, size) for suite in ("test_a.py", "test_b.py") for size in (10, 20, 30, 40)
    }
    assert len(saved) == 8
    assert len({record.run_id for record in saved}) == 1
    assert all("2 processes at once" in record.notes[0] for record in saved)
    assert saved[0].environment["command"][-4:] == ["-n", "2", "--flopwatch-save", "saved.jsonl"]


@pytest.mark.parametrize(
    ("option", "counts"),
    [("--flopwatch-skip", "1 passed, 5 skipped"), ("--flopwatch-only", "4 passed, 2 deselected")],
)
def test_measuring_tests_are_skipped_or_alone(
    folder: pytest.Pytester, option: str, counts: str
) -> None:
    late = "def test_late(request):\n    request.getfixturevalue('flopwatch')\n"
    folder.makepyfile(test_a=SIZES, test_plain=PLAIN, test_late=late)
    done = run_pytest(folder, option)

    assert f"{counts} in" in done.stdout.str()
    assert run_pytest(folder, "--flopwatch-only", "--flopwatch-skip").ret == 4


def test_marks_give_options_and_calls_change_them(folder: pytest.Pytester) -> None:
    text = """
import pytest

pytestmark = pytest.mark.flopwatch(budget_s=0.05, threshold=0.5)

def one():
    return 1

@pytest.mark.flopwatch(threshold=0.25, seed=3)
def test_options(flopwatch):
    both = {"a": one, "b": one}
    assert flopwatch.compare(both).threshold == 0.25
    assert flopwatch.compare(both, threshold=0.1).threshold == 0.1
    assert flopwatch.compare(both).measurements["a"].raw.settings.seed == 3
    assert flopwatch.measure(one).raw.settings.budget_s == 0.05

@pytest.mark.flopwatch(budget=3)
def test_unknown(flopwatch):
    pass

@pytest.mark.flopwatch(3)
def test_by_position(flopwatch):
    pass
"""
    folder.makepyfile(test_marks=text)
    done = run_pytest(folder)

    assert "1 passed, 2 errors" in done.stdout.str()
    assert (
        "the mark flopwatch has no option budget; it takes backward, budget_s," in done.stdout.str()
    )
    assert "the mark flopwatch has no option 3; it takes" in done.stdout.str()


def test_what_is_written_twice_is_the_same() -> None:
    assert get_args(Verdict) == pytest_plugin.VERDICTS
    for function, options in ((compare, CompareOptions), (measure, MeasureOptions)):
        first, *others = signature(function).parameters
        assert set(others) - {"progress"} == set(options.__annotations__)


def test_a_failure_is_a_row(folder: pytest.Pytester) -> None:
    text = """
import pytest
import torch

x = torch.ones(4)

def fail():
    raise RuntimeError("broken on purpose")

def test_crash(flopwatch):
    flopwatch.compare({"good": lambda: x, "bad": fail}, budget_s=0.1)

def test_wrong(flopwatch):
    flopwatch.compare({"good": lambda: x, "off": lambda: 2 * x}, tolerance=0.1, budget_s=0.1)

def test_mistake(flopwatch):
    flopwatch.compare({"alone": fail})
"""
    folder.makepyfile(test_failures=text)
    done = run_pytest(folder, "--flopwatch-save", "saved.jsonl")

    assert "3 failed" in done.stdout.str()
    # Of flopwatch's own lines, only the error is printed, but where a function raised it.
    assert "function_agreement.py" not in done.stdout.str()
    assert "E       flopwatch.worker.agreement.WrongResult: 'off' disagrees" in done.stdout.str()
    good, bad, off = read_saved(folder)
    assert (good.variant, good.status, bad.variant, bad.status) == ("good", "crash", "bad", "crash")
    assert bad.message == "RuntimeError: broken on purpose (test_failures.py:7)"
    assert (off.variant, off.status) == ("off", "wrong")
    assert off.check is not None
    assert off.message is not None
    assert off.message.startswith("'off' disagrees with 'good'")


def test_a_file_that_is_not_ours_is_refused_before_tests_run(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_plain=PLAIN)
    (folder.path / "letter.txt").write_text("Dear reader\n")
    done = run_pytest(folder, "--flopwatch-save", "letter.txt")

    assert done.ret == 4
    assert "letter.txt" in done.stderr.str()
    assert "Traceback" not in done.stderr.str()
    assert (folder.path / "letter.txt").read_text() == "Dear reader\n"


CONFTEST = """
import json
import sys

def pytest_sessionfinish():
    with open("modules.json", "w") as file:
        json.dump(sorted(sys.modules), file)
"""


def test_a_run_that_measures_nothing_imports_next_to_nothing(folder: pytest.Pytester) -> None:
    folder.makepyfile(conftest=CONFTEST, test_plain=PLAIN)
    done = run_pytest(folder, "-p", "no:xdist", "-p", "no:cov")
    assert done.ret == 0, done.stdout.str()
    assert "flopwatch" not in done.stdout.str().partition("plugins:")[2].partition("\n")[2]
    ours = {name for name in json.loads((folder.path / "modules.json").read_text()) if "." in name}

    assert {name for name in ours if name.startswith("flopwatch")} == {
        "flopwatch.errors", "flopwatch.lazy", "flopwatch.pytest_plugin",
    }  # fmt: skip
    heavy = {"torch", "numpy", "msgspec", "duckdb", "click", "rich", "psutil", "scipy"}
    assert heavy.isdisjoint(json.loads((folder.path / "modules.json").read_text()))


def test_tracing_is_off_while_something_is_measured(folder: pytest.Pytester) -> None:
    text = """
import sys

def test_untraced(flopwatch):
    seen = []
    sys.settrace(lambda *_: None)
    try:
        flopwatch.measure(lambda: seen.append(sys.gettrace()), budget_s=0.01)
        assert set(seen) == {None}
        assert sys.gettrace() is not None
    finally:
        sys.settrace(None)
"""
    folder.makepyfile(test_trace=text)
    assert "1 passed" in run_pytest(folder).stdout.str()
