"""Errors of a device, after which a process is of no use: only the guilty variant fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwatch.runner.worker_death import explain_death
from tests.runner.test_session import by_variant, run

SUITE = """
import torch
import flopwatch
from flopwatch.devices.cpu import CpuBackend

suite = flopwatch.Suite(
    "poisoned",
    axes={{"size": [64]}},
    variants=["plain", "builds", "samples", "reports late", "last"],
    accepts=lambda axis, value: axis == "size",
    searches={{"size": lambda case: range(1, 101)}},
)
is_poisoned = False  # as a process is after an illegal access: every later call fails as well

def check():
    if is_poisoned:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

def poison():
    global is_poisoned
    is_poisoned = True

CpuBackend.synchronize = lambda self: check()

@suite.build
def build(case):
    check()
    x, calls = torch.arange(float(case.size)), []

    def work():
        check()
        calls.append(1)
        if case.variant == "samples" and len(calls) > 3:
            poison()
            check()
        if case.variant == "reports late" and len(calls) > 3:
            poison()
            raise ValueError("a plain mistake, with work still queued")
        return x + x

    if case.variant == "builds":
        poison()
    if case.size > 11 and {oom!r}:
        poison()
        raise RuntimeError({oom!r})
    return work

@suite.reference
def reference(case):
    if {bad_reference!r} and case.variant == "last":
        poison()
        check()
    return lambda: torch.arange(float(case.size)) * 2
"""


def write(folder: Path, *, oom: str = "", bad_reference: bool = False) -> Path:
    path = folder / "poisoned.py"
    path.write_text(SUITE.format(oom=oom, bad_reference=bad_reference))
    return path


def test_only_the_guilty_variants_fail(tmp_path: Path) -> None:
    """Of several: while it is built, while it is sampled, and where the device comes to its error
    only after the variant has failed otherwise."""
    records = by_variant(run(write(tmp_path)))
    assert {name: record.status for name, record in records.items()} == {
        "plain": "ok",
        "builds": "crash",
        "samples": "crash",
        "reports late": "crash",
        "last": "ok",
    }
    assert "illegal memory access" in (records["builds"].message or "")
    assert "a plain mistake" in (records["reports late"].message or "")


def test_a_reference_that_spoils_the_device_costs_its_variant(tmp_path: Path) -> None:
    path = write(tmp_path, bad_reference=True)
    records = by_variant(run(path, filters=["variant=plain,last"]))
    assert records["plain"].status == "ok"
    assert records["last"].status == "crash"
    assert (records["last"].message or "").startswith("RuntimeError: its reference failed: Accel")


@pytest.mark.parametrize("said", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"])
def test_the_search_for_the_largest_goes_on_where_a_device_runs_out_of_memory(
    tmp_path: Path, said: str
) -> None:
    path = write(tmp_path, oom=said)
    report = run(path, chosen=["size=auto"], filters=["variant=plain"])
    (measured,) = [record for record in report.measured if record.status == "ok"]
    assert measured.params["size"] == 11
    assert {record.status for record in report.tried} == {"oom"}


def test_a_library_that_aborts_for_lack_of_memory() -> None:
    log = "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  {}"
    full, other = "CUDA error: out of memory", "CUDA error: an illegal memory access"
    assert explain_death(-6, "sampling", log.format(full)).status == "oom"
    assert explain_death(-6, "sampling", log.format(other)).status == "crash"
    assert explain_death(-6, "sampling", f"it said: {full}").status == "crash"
