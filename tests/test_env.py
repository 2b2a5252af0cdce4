"""Environment variables have one reader, and each has a meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flopwatch
from flopwatch import env

PACKAGE = Path(flopwatch.__file__).parent
PASS_ON = {
    "env.py",
    "devices/present_accelerators.py",  # a child inherits them
    "devices/environment.py",  # stores them in records
    "devices/instruction_sets.py",  # a child inherits them
    "prediction/validation.py",  # sets one of BLAS, before it is loaded
    "runner/local_launcher.py",  # workers inherit them
    "worker/communicator.py",  # sets those of torchrun
    "worker/process_state.py",  # compares them
}


def test_no_other_module_reads_the_environment() -> None:
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"os\.environ|getenv", path.read_text())
    }
    assert readers == PASS_ON


def test_only_variables_of_the_table_are_read() -> None:
    assert env.read("CXX", {"CXX": "clang++"}) == "clang++"
    assert env.read("CXX", {}) == ""
    with pytest.raises(KeyError, match="add it there"):
        env.read("SOMETHING", {})


def test_the_cache_folder() -> None:
    assert env.find_cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/flopwatch")
    assert env.find_cache_folder({}) == Path.home() / ".cache/flopwatch"
