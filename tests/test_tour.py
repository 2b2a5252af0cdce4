"""The tour that `make bench` is: a stop that fails does not keep the others' results from the page.

The script is the real one; its flopwatch only notes what it is asked for, since the real one takes
minutes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "tour.sh"
FLOPWATCH = """#!/usr/bin/env bash
echo "$*" >> asked
case "$*" in
    "run --list --json") cat suites.json ;;
    report*) touch report.html ;;
    $FAILING*) exit $CODE ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the tour needs bash")


def run_tour(folder: Path, failing: str, code: int = 1) -> tuple[int, str, list[str]]:
    (folder / "benchmarks").mkdir()
    shutil.copy(SCRIPT, folder / "benchmarks")
    commands = folder / ".venv" / "bin"
    commands.mkdir(parents=True)
    (commands / "flopwatch").write_text(FLOPWATCH)
    (commands / "flopwatch").chmod(0o755)
    suites = [{"name": name, "summary": f"of {name}"} for name in ("steps", "training")]
    (folder / "suites.json").write_text(json.dumps(suites))
    (commands / "python").symlink_to(sys.executable)
    done = subprocess.run(
        ["bash", folder / "benchmarks" / "tour.sh", "--threads", "1"],
        env={"PATH": "/usr/bin:/bin", "FAILING": failing, "CODE": str(code)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, (folder / "asked").read_text().splitlines()


def test_all_stops_end_with_a_page(tmp_path: Path) -> None:
    code, errors, asked = run_tour(tmp_path, failing="nothing")
    assert (code, errors) == (0, "")
    assert [words.split()[0] for words in asked] == [
        *("doctor", "peaks", "run", "run", "run", "explain", "predict", "report"),
    ]
    assert asked[3].endswith("--threads 1")
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("failing", ["doctor", "peaks", "run training", "explain"])
def test_a_stop_that_fails_is_said_at_the_end(tmp_path: Path, failing: str) -> None:
    code, errors, asked = run_tour(tmp_path, failing)
    assert code == 1
    assert errors.startswith(f"failed: flopwatch {failing}")
    assert len(asked) == 8
    assert (tmp_path / "report.html").exists()


def test_an_interrupt_ends_it(tmp_path: Path) -> None:
    code, _, asked = run_tour(tmp_path, "run steps", code=130)
    assert code == 130
    assert asked[-1].startswith("run steps")
