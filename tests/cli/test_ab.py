"""Two revisions of a small repository, compared from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flopwatch.records.store import read
from flopwatch.runner import revision_session
from tests.cli.test_main import assert_refused, flopwatch

SUITE = '''"""What the package computes."""
import torch

import flopwatch

suite = flopwatch.Suite(
    "mine", axes={"rows": [16]}, variants=["package", "plain"], baseline="plain"
)


@suite.build
def build(case):
    x = torch.ones(case.rows, 64)
    if case.variant == "plain":
        return lambda: x.tanh()
    import package

    return lambda: package.compute(x)
'''
CODE = '''"""Tanh, and {calls} of them."""


def compute(x):
    for _ in range({calls}):
        y = x.tanh()
    return y
'''
FAILING = "def compute(x):\n    raise RuntimeError('no longer')\n"


def git(folder: Path, *words: str) -> None:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    subprocess.run(command, check=True, capture_output=True)


def commit(folder: Path, code: str, tag: str) -> None:
    (folder / "src" / "package" / "__init__.py").write_text(code)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", tag)
    git(folder, "tag", tag)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src" / "package").mkdir(parents=True)
    (folder / "bench.py").write_text(SUITE)
    (folder / ".gitignore").write_text("results\n__pycache__\n")
    git(folder, "init", "-q", "-b", "main")
    commit(folder, CODE.format(calls=1), "fast")
    (folder / "README").write_text("more words")
    commit(folder, CODE.format(calls=1), "same")
    commit(folder, CODE.format(calls=4), "slow")
    commit(folder, FAILING, "failing")
    return folder


@pytest.mark.slow
def test_a_slower_revision_fails_the_gate_with_a_comment(repository: Path) -> None:
    result = flopwatch(
        "ab", "fast", "slow", "--suite", "bench.py", "--fail-if-slower", "5%", "--threads", 1,
        "-o", "comment.md", "--folder", "results/ab", cwd=repository,
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert "1 of 2 cases slower: package rows=16 +" in result.stdout
    assert "slower, or no longer measured: package rows=16" in result.stderr
    comment = (repository / "comment.md").read_text()
    assert comment.startswith("<!-- flopwatch ab -->\n### flopwatch: 1 of 2 cases slower")
    assert "| rows | variant" in comment or "| variant" in comment
    # The same verdict from the files alone: their rounds are pairs.
    again = flopwatch(
        "compare", "results/ab/base.jsonl", "results/ab/head.jsonl", "--json", cwd=repository
    )
    found = json.loads(again.stdout)
    assert found["basis"] == "turns"
    verdicts = {one["variant"]: one["verdict"] for one in found["comparisons"]}
    assert verdicts["package"] == "slower"


@pytest.fixture
def _short_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision_session, "VISIT_S", 0.05)


def measure(
    repository: Path, base: str, head: str | None, **more: object
) -> revision_session.Report:
    given = {
        "suite": repository / "bench.py", "repository": repository, "threshold": 0.05,
        "settings": revision_session.Settings(), "out": repository / "results", "threads": 1,
        "case_budget_s": 0.1, **more,
    }  # fmt: skip
    options = revision_session.Options(base=base, head=head, **given)  # type: ignore[arg-type]
    return revision_session.run(options, Silent())


class Silent:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.say = self.said.append

    def begin(self, *given: object) -> None: ...
    def begin_group(self, group: object) -> None: ...
    def progress(self, progress: object, records: object) -> None: ...
    def remark(self, sentence: str) -> None: ...
    def end_group(self, group: object, records: object) -> None: ...


@pytest.mark.usefixtures("_short_visits")
def test_rounds_of_both_sides_are_pairs_in_at_least_four_visits(repository: Path) -> None:
    report = measure(repository, "fast", "slow")
    base, head = (read(report.folder / f"{side}.jsonl").records for side in ("base", "head"))
    runs = {record.run_id for record in base}
    assert len(runs) >= 4
    assert {record.run_id for record in head} == runs
    assert [r.environment["project"]["commit"] for r in base] != [
        r.environment["project"]["commit"] for r in head
    ]
    pairs = {(r.run_id, r.variant): r for r in base}
    for record in head:
        assert record.warmup_samples == pairs[record.run_id, record.variant].warmup_samples
        assert record.rounds == pairs[record.run_id, record.variant].rounds
    assert report.judgement.basis == "turns"
    assert report.remarks == []


@pytest.mark.usefixtures("_short_visits")
def test_a_revision_that_fails_is_a_row_and_the_others_go_on(repository: Path) -> None:
    report = measure(repository, "fast", "failing")
    assert [record.variant for record in report.judgement.broken] == ["package"]
    assert "no longer" in str(report.judgement.broken[0].message)
    assert [one.new.variant for one in report.judgement.comparisons] == ["plain"]
    alone = [r for r in read(report.folder / "base.jsonl").records if r.run_id.endswith("-alone")]
    assert "package" in {record.variant for record in alone}


@pytest.mark.usefixtures("_short_visits")
def test_two_sides_that_load_the_same_code_are_named(repository: Path) -> None:
    report = measure(repository, "fast", "same")
    assert report.remarks[0].startswith("warning: the revisions differ in 1 file, and the suite")
    report = measure(repository, "same", "same")
    assert report.remarks == ["the revisions do not differ: both sides measured the same code"]


@pytest.mark.usefixtures("_short_visits")
def test_a_suite_that_the_base_does_not_have_yet_is_run_on_both(repository: Path) -> None:
    (repository / "new.py").write_text(SUITE)
    report = measure(repository, "fast", None, suite=repository / "new.py")
    assert report.remarks[0].startswith("fast (")
    assert "has no new.py: both run that of work tree" in report.remarks[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fast", "slow"], "Missing option '--suite'"),
        (["nosuch", "slow", "--suite", "bench.py"], "no revision 'nosuch'"),
        (["fast", "slow", "--suite", "no.py"], "no suite file no.py"),
        (["fast", "--suite", "bench.py", "--path", "nosuch"], "no such folder"),
        (["fast", "--suite", "bench.py", "--build", "exit 7"], "exit code 7"),
        (["fast", "--suite", "bench.py", "--filter", "rows=5"], "has no value '5'"),
        (["fast", "--suite", "bench.py", "--allow-unclear"], "no effect without it"),
        (["fast", "--suite", "bench.py", "-o", "bench.py"], "bench.py"),
    ],
)
def test_bad_input_is_one_sentence(repository: Path, words: list[str], expected: str) -> None:
    result = flopwatch("ab", *words, cwd=repository)
    assert_refused(result, expected)
    assert (repository / "bench.py").read_text() == SUITE
    assert not list(repository.glob("results/**/*.jsonl"))
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=repository, check=True, capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_what_the_action_runs_works_on_two_revisions(repository: Path) -> None:
    """The step of action.yml, with the environment that GitHub gives it."""
    action = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text())
    (step,) = [step for step in action["runs"]["steps"] if step["name"] == "Measure"]
    defaults = {name: one.get("default", "") for name, one in action["inputs"].items()}
    given = {
        **defaults, "suite": "bench.py", "base": "fast", "head": "slow", "build": "true",
        "arguments": "--threads 1 --filter variant=package",
    }  # fmt: skip
    variables = {
        name: given[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, value in step["env"].items()
    }
    summary = repository / "summary.md"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=repository,
        env={**os.environ, **variables, "GITHUB_STEP_SUMMARY": str(summary), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert "slower: package rows=16 +" in summary.read_text()
    assert (repository / "flopwatch-results" / "head.jsonl").is_file()
