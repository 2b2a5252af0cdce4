"""A few attempts of every part of the hostile trial, `benchmarks/hostile.py`, with fixed seeds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from trials import (
    environments,
    foreign_files,
    fuzzed_files,
    hostile_suites,
    monitor_kills,
    signals,
)

SUITES = ("leaves_with_3", "dies_of_segfault", "raises_exception")


@pytest.mark.parametrize("seed", range(10))
def test_damaged_files(seed: int) -> None:
    assert fuzzed_files.try_file(seed).failures == ()


@pytest.mark.parametrize("name", ["ASCII output", "stdout is full", "results without an end"])
def test_environments(name: str) -> None:
    assert environments.try_environment(name).failures == ()


@pytest.mark.parametrize(
    ("writer", "content"),
    [
        ("run --rerun", "notes"),
        ("import", foreign_files.FRESH),
        ("import", "one line of JSON"),
        ("peaks", "JSON lines, torn"),
    ],
)
def test_foreign_files(writer: str, content: str) -> None:
    assert foreign_files.try_foreign_file(writer, content).failures == ()


@pytest.mark.parametrize("path", [p for p in hostile_suites.list_suites() if p.stem in SUITES])
def test_suites(path: Path) -> None:
    assert hostile_suites.try_suite(path).failures == ()


# The last one stops one of two ranks while it joins the other.
@pytest.mark.parametrize("seed", [1, 2, 862684])
def test_signals(seed: int) -> None:
    assert signals.try_signal(seed).failures == ()


def test_killed_training_loops() -> None:
    assert monitor_kills.try_kill(1).failures == ()
