"""Revisions in worktrees of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flopwatch.errors import UsageError
from flopwatch.runner.revisions import WORK_TREE, build, check_out, list_import_paths


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for text in ("one", "two"):
        (folder / "code.py").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", text)
    return folder


def test_both_revisions_are_checked_out_and_removed_again(repository: Path) -> None:
    with check_out("HEAD~1", "main", repository) as both:
        assert (both.base.folder / "code.py").read_text() == "one"
        assert (both.head.folder / "code.py").read_text() == "two"
        assert both.changed == ["code.py"]
        assert both.base.label == f"HEAD~1 ({git(repository, 'rev-parse', 'HEAD~1')[:10]})"
        folders = [both.base.folder, both.head.folder]
    assert not any(folder.exists() for folder in folders)
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_without_a_head_the_work_tree_is_taken_as_it_is(repository: Path) -> None:
    (repository / "code.py").write_text("three")
    with check_out("main", None, repository / ".git" / "..") as both:
        assert both.head.folder == repository
        assert both.head.name == WORK_TREE
        assert (both.base.folder / "code.py").read_text() == "two"
        assert both.changed == ["code.py"]
    assert (repository / "code.py").read_text() == "three"


def test_an_unknown_revision_says_how_to_fetch_it(repository: Path) -> None:
    with (
        pytest.raises(UsageError, match="no revision 'nosuch'.*git fetch origin nosuch"),
        check_out("nosuch", "main", repository),
    ):
        pass


def test_a_folder_without_git_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="not a git repository"),
        check_out("main", None, tmp_path),
    ):
        pass


def test_each_revision_is_built_in_its_folder(repository: Path) -> None:
    with check_out("HEAD~1", "HEAD", repository) as both:
        for side in (both.base, both.head):
            build(side, "mkdir made && cp code.py made/")
        assert (both.base.folder / "made" / "code.py").read_text() == "one"
        assert list_import_paths(both.base, ["made"]) == [str(both.base.folder / "made")]
        with pytest.raises(UsageError, match=r"exit code 3: no compiler"):
            build(both.head, "echo no compiler; exit 3")
        with pytest.raises(UsageError, match="--path nosuch: HEAD .* has no such folder"):
            list_import_paths(both.head, ["nosuch"])


def test_modules_come_from_src_first(repository: Path) -> None:
    (repository / "src").mkdir()
    with check_out("HEAD", None, repository) as both:
        assert list_import_paths(both.head, []) == [str(repository / "src"), str(repository)]
        assert list_import_paths(both.base, []) == [str(both.base.folder)]
