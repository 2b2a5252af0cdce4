"""flopwatch doctor and peaks, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_main import assert_refused, flopwatch


def test_doctor(tmp_path: Path) -> None:
    brief = flopwatch("doctor", cwd=tmp_path)
    assert brief.returncode == 0
    assert "instruction set" not in brief.stdout
    assert max(map(len, brief.stdout.splitlines())) <= 100
    result = flopwatch("doctor", "-v", cwd=tmp_path)
    assert result.returncode == 0
    for word in ("torch", "instruction set", "cores", "allocator"):
        assert word in result.stdout
    content = json.loads(flopwatch("doctor", "--json", cwd=tmp_path).stdout)
    assert {"environment", "advice", "jitter"} <= set(content)


def test_a_device_of_the_doctor_is_for_low_precision(tmp_path: Path) -> None:
    assert_refused(flopwatch("doctor", "--device", "cpu", cwd=tmp_path), "add --low-precision")


def test_devices_are_found_by_their_names(tmp_path: Path) -> None:
    (device,) = json.loads(flopwatch("peaks", "H100-SXM", "--json", cwd=tmp_path).stdout)
    assert device["name"].startswith("H100-SXM")
    assert len(json.loads(flopwatch("peaks", "--list", "--json", cwd=tmp_path).stdout)) > 40
