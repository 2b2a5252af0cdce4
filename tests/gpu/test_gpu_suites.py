"""Commands as a user gives them: every suite's quick grid, peaks, a profile, and jobs of ranks on
all devices of the node. What was measured stays in results/gpu."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flopwatch.devices.kinds import find_kind
from flopwatch.devices.present_accelerators import Accelerators
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.suites.catalog import list_built_in

pytestmark = pytest.mark.gpu


def flopwatch(*words: str) -> str:
    """What a command prints; its device is the default."""
    done = subprocess.run(
        [sys.executable, "-m", "flopwatch", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_suite(results: Path, name: str, *words: str) -> list[Record]:
    """The records of a run; a file of an earlier one is replaced."""
    out = results / f"{name}.jsonl"
    out.unlink(missing_ok=True)
    flopwatch("run", *words, "--out", str(out))
    return read(out).records


def require_ok(records: list[Record], device: str) -> None:
    failed = {f"{r.variant} {r.params}": r.message for r in records if r.status != "ok"}
    assert not failed
    assert {record.settings.device for record in records} == {device}


@pytest.mark.parametrize("suite", [suite.name for suite in list_built_in()])
def test_the_quick_grid_of_a_suite(device: str, results: Path, suite: str) -> None:
    records = run_suite(results, suite, suite, "--quick")
    assert records
    require_ok(records, device)
    if suite != "switchback":  # lists of parts have no check of their own
        assert all(record.check is not None for record in records)


def test_peaks_of_all_dtypes(accelerators: Accelerators, results: Path) -> None:
    path = results / "peaks.jsonl"
    path.unlink(missing_ok=True)
    found: dict[str, Any] = json.loads(flopwatch("peaks", "--quick", "--json", "--out", str(path)))
    assert found["best"]["flops_per_s"]["bfloat16"] > 1e12
    assert found["setup"]["device"] == accelerators.device


def test_doctor_knows_the_device(accelerators: Accelerators) -> None:
    found = json.loads(flopwatch("doctor", "--json"))
    assert found["environment"]["torch"]["gpu"]["count"] == len(accelerators.names)


def test_a_profile_has_kernels(device: str) -> None:
    found = json.loads(flopwatch("profile", "--model", "small", "--seq-len", "512", "--json"))
    assert found["device"] == device
    assert found["entries"]


def test_tf32_and_float32_run_and_agree_with_their_references(device: str, results: Path) -> None:
    if not find_kind(device).has_tf32:
        pytest.skip(f"{device} has no tf32")
    words = ["--model", "small", "--seq-len", "512", "--variant", "eager", "--quick"]
    records = run_suite(results, "tf32", "steps", *words, "--precision", "tf32,fp32")
    require_ok(records, device)
    assert {record.params["precision"] for record in records} == {"tf32", "fp32"}


@pytest.mark.parametrize("variants", ["none,ddp", "none,full", "none,zero2"])
def test_ranks_on_all_devices(
    accelerators: Accelerators, device: str, results: Path, variants: str
) -> None:
    """By NCCL, RCCL or whatever the device has; losses must be those of one rank."""
    ranks = len(accelerators.names)
    if ranks == 1:
        pytest.skip("one device alone sends nothing")
    words = ["--model", "small", "--seq-len", "1024", "--micro-batch", "2", "--variant", variants]
    name = f"training-{variants.rpartition(',')[2]}"
    records = run_suite(results, name, "training", *words, "--ranks", str(ranks))
    require_ok(records, device)
    assert {record.params["ranks"] for record in records} == {ranks}
    assert all(record.check is not None for record in records)


def test_one_device_of_several(accelerators: Accelerators, device: str, results: Path) -> None:
    records = run_suite(results, "training-1", "training", "--quick", "--ranks", "1")
    require_ok(records, device)
    assert {record.params["ranks"] for record in records} == {1}
