"""Outputs that replace a file do it as a whole; others' files are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flopwatch.errors import UsageError
from flopwatch.records.file_safety import replace_file, require_replaceable


def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\)"):
        replace_file(path, b"new")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "page.html", tmp_path / "link.html"
    path.touch(mode=0o640)
    link.symlink_to(path)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "missing" / "page.html", "No such file"),
        (tmp_path / "notes", "exists and is not a page"),
    ):
        with pytest.raises(UsageError, match=why):
            require_replaceable(path, lambda content: False, "a page")
    require_replaceable(tmp_path / "new", lambda content: False, "a page")
    require_replaceable(Path(os.devnull), lambda content: False, "a page")
    assert os.listdir(tmp_path) == ["notes"]
