"""Whether a silent process is at work."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.runner import local_launcher
from flopwatch.runner.activity import (
    MOVED_BYTES,
    Usage,
    is_any_stopped,
    is_at_work,
    read_usage,
)
from tests.runner.test_session import QUICK, by_variant, run, wait_until

BEFORE = Usage(at_s=100.0, own_cpu_s=1.0, others_cpu_s=1.0, moved_bytes=1000)
IDLE = replace(BEFORE, at_s=200.0)


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({}, set()),
        ({"own_cpu_s": 2.0}, set()),  # 1 % of a core: it polls
        # A collective that waits in vain may spin.
        ({"own_cpu_s": 90.0}, {"starting", "loading", "build"}),
        ({"others_cpu_s": 90.0}, {"starting", "loading", "build", "check", "reference"}),
        (
            {"moved_bytes": 1001 + MOVED_BYTES},
            {"starting", "loading", "build", "check", "reference"},
        ),
    ],
)
def test_what_counts_as_work_depends_on_the_stage(
    change: dict[str, float], stages: set[str]
) -> None:
    now = replace(IDLE, **change)  # type: ignore[arg-type]
    all_stages = {"starting", "loading", "build", "check", "reference", "sampling", "curves"}
    assert {stage for stage in all_stages if is_at_work(BEFORE, now, stage)} == stages


def test_a_stopped_process_is_seen() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        assert not is_any_stopped([process.pid])
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_any_stopped([1, process.pid]))
        process.kill()
    assert not is_any_stopped([process.pid])


def test_a_compiler_that_a_process_has_started_counts_as_its_work() -> None:
    spin = "while True: pass"
    wait = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    with subprocess.Popen([sys.executable, "-c", wait], start_new_session=True) as process:
        try:
            before = read_usage([process.pid])
            wait_until(lambda: is_at_work(before, read_usage([process.pid]), "check"))
        finally:
            subprocess.run(["kill", "--", f"-{process.pid}"], check=True)
    assert read_usage([process.pid]).own_cpu_s == 0.0  # it is gone, which is no error


SUITE = """
import time
import torch
import flopwatch

suite = flopwatch.Suite("slow", axes={"n": [1]}, variants=["plain", "slow", "stuck", "spins"])

@suite.build
def build(case):
    end_s = time.monotonic() + 3.0
    while case.variant == "spins" or (case.variant == "slow" and time.monotonic() < end_s):
        sum(range(1000))
    if case.variant == "stuck":
        time.sleep(1000)
    x = torch.ones(8)
    return lambda: x + x
"""


@pytest.mark.slow
def test_building_may_take_longer_than_the_limit_but_not_without_work_nor_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_launcher, "BUSY_FACTOR", 3)
    path = tmp_path / "slow.py"
    path.write_text(SUITE)
    records = by_variant(run(path, settings=replace(QUICK, silence_limit_s=2.0)))
    assert {name: record.status for name, record in records.items()} == {
        "plain": "ok",
        "slow": "ok",
        "stuck": "timeout",
        "spins": "timeout",
    }
    assert (records["stuck"].message or "").startswith("no progress for 2 s during build")
    assert (records["spins"].message or "").startswith("no progress for 6 s during build")
