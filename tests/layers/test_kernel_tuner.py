"""Tuning: one of several ways is chosen by measuring, and kept for other processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flopwatch.layers.kernels import kernel_tuner

ABOUT = ("a device", "a version")


class Clock:
    """Times ways as the test wants it, and counts them."""

    def __init__(self, **times_ms: float) -> None:
        self.times_ms = times_ms
        self.ways = {name: self._make(name) for name in times_ms}
        self.measured: list[str] = []

    def _make(self, name: str) -> Callable[[], object]:
        def way() -> str:
            if self.times_ms[name] == float("inf"):
                raise RuntimeError(f"{name} cannot")
            return name

        return way

    def measure(self, way: Callable[[], object]) -> float:
        (name,) = (name for name, one in self.ways.items() if one is way)
        self.measured.append(name)
        return self.times_ms[name]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    clock = Clock(slow=3.0, fast=1.0, impossible=float("inf"))
    monkeypatch.setattr(kernel_tuner, "measure", clock.measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return clock


def find_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "flopwatch").iterdir()
    return file


def test_the_fastest_is_chosen_and_kept(clock: Clock, tmp_path: Path) -> None:
    assert kernel_tuner.choose(ABOUT, "1 x 2", clock.ways) == "fast"
    assert clock.measured == ["slow", "fast", "impossible"]
    assert kernel_tuner.choose(ABOUT, "1 x 2", clock.ways) == "fast"
    assert len(clock.measured) == 3
    file = find_file(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text()) == {"1 x 2": "fast"}


def test_other_sizes_and_other_devices_are_measured_by_themselves(clock: Clock) -> None:
    kernel_tuner.choose(ABOUT, "1 x 2", clock.ways)
    kernel_tuner.choose(ABOUT, "3 x 4", clock.ways)
    kernel_tuner.choose(("another device",), "1 x 2", clock.ways)
    assert len(clock.measured) == 9
    kernel_tuner.choose(ABOUT, "1 x 2", clock.ways)
    assert len(clock.measured) == 9


def test_a_way_that_is_no_more_is_not_taken(clock: Clock) -> None:
    kernel_tuner.choose(ABOUT, "1 x 2", clock.ways)
    del clock.ways["fast"]
    assert kernel_tuner.choose(ABOUT, "1 x 2", clock.ways) == "slow"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"1 x 2": 7}', '{"1 x 2": "unheard of"}'])
def test_a_damaged_file_is_as_good_as_none(clock: Clock, tmp_path: Path, content: str) -> None:
    kernel_tuner.choose(ABOUT, "1 x 2", clock.ways)
    find_file(tmp_path).write_text(content)
    assert kernel_tuner.choose(ABOUT, "1 x 2", clock.ways) == "fast"
    assert json.loads(find_file(tmp_path).read_text()) == {"1 x 2": "fast"}


@pytest.mark.parametrize("mode", [0o777, 0o500])
def test_a_folder_that_cannot_be_trusted_or_written(
    clock: Clock, tmp_path: Path, mode: int
) -> None:
    (tmp_path / "flopwatch").mkdir()
    (tmp_path / "flopwatch").chmod(mode)
    assert kernel_tuner.choose(ABOUT, "1 x 2", clock.ways) == "fast"


def test_a_file_that_others_may_write_is_not_believed(clock: Clock, tmp_path: Path) -> None:
    kernel_tuner.choose(ABOUT, "1 x 2", clock.ways)
    file = find_file(tmp_path)
    file.write_text('{"1 x 2": "slow"}')
    file.chmod(0o666)
    assert kernel_tuner.choose(ABOUT, "1 x 2", clock.ways) == "fast"


def test_where_nothing_works_the_reason_is_said(clock: Clock) -> None:
    del clock.ways["slow"], clock.ways["fast"]
    clock.ways["as impossible"] = clock._make("impossible")
    clock.times_ms["as impossible"] = float("inf")
    with pytest.raises(RuntimeError, match="impossible cannot"):
        kernel_tuner.choose(ABOUT, "1 x 2", clock.ways)


def test_one_way_is_not_measured(clock: Clock) -> None:
    assert kernel_tuner.choose(ABOUT, "1 x 2", {"slow": clock.ways["slow"]}) == "slow"
    assert clock.measured == []


def test_nothing_is_measured_while_a_graph_is_captured(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_tuner, "_is_capturing", lambda: True)
    assert kernel_tuner.choose(ABOUT, "1 x 2", clock.ways) == "slow"
    assert clock.measured == []
    assert not (tmp_path / "flopwatch").exists()
