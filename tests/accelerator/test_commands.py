"""The command line from end to end on an accelerator of a package of its own: every process that
flopwatch starts finds it as it would find any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flopwatch.analysis.statistics import median
from tests.accelerator.conftest import Command, read_records

pytestmark = pytest.mark.xdist_group("accelerator")

TINY = "decoder:hidden_size=32:layers=1"
BUDGET = ("--case-budget", "100ms", "--device", "flop")

SUITES: dict[str, tuple[str, ...]] = {
    "activations": ("--set", "shape=16x64", "--filter", "dtype=bfloat16"),
    "attention": (
        *("--set", "micro_batch=2", "--set", "seq_len=16", "--set", "head_size=16"),
        *("--filter", "dtype=bfloat16", "--filter", "variant=plain,sdpa"),
    ),
    "dyad": (
        *("--filter", "level=layer", "--set", "tokens=16", "--set", "shape=32x64"),
        *("--set", "variant=dense,dyad:it:4,switchback:rowwise"),
        *("--filter", "dtype=bfloat16", "--filter", "autocast=off"),
    ),
    "steps": (
        *("--model", TINY, "--seq-len", "16", "--micro-batch", "2"),
        *("--variant", "eager,recompute-full", "--precision", "bf16-mixed"),
    ),
    "switchback": (
        *("--filter", "level=layer", "--set", "tokens=16", "--set", "shape=32x64"),
        *("--filter", "dtype=bfloat16"),
    ),
}


def run(
    flopwatch: Command, folder: Path, suite: str, options: Sequence[str], **environment: Any
) -> dict[str, Any]:
    """Records by variant; every command ends well, whatever became of its cases."""
    done = flopwatch("run", suite, *options, *BUDGET, **environment)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    records = read_records(folder, Path(suite).stem)
    assert {record["settings"]["device"] for record in records} == {"flop"}
    return {record["variant"]: record for record in records}


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_runs(flopwatch: Command, tmp_path: Path, suite: str) -> None:
    records = run(flopwatch, tmp_path, suite, SUITES[suite])
    assert len(records) >= 2
    for variant, record in records.items():
        assert record["status"] == "ok", (variant, record["message"])
        assert record["check"] is not None
        assert min(map(len, record["samples_ns"].values())) > 0
        assert record["peak_memory_bytes"] > 0


@pytest.mark.slow
def test_what_inductor_has_no_code_for_is_unsupported(flopwatch: Command, tmp_path: Path) -> None:
    options = [*SUITES["steps"], "--variant", "eager,compiled"]
    records = run(flopwatch, tmp_path, "steps", options)
    assert records["eager"]["status"] == "ok"
    assert records["compiled"]["status"] == "unsupported"
    assert "torch.compile" in records["compiled"]["message"]


def find_exposed(record: dict[str, Any]) -> list[float]:
    """Of each rank, in a step: how long its computation waited for collectives."""
    first = max(1, record["warmup_samples"])  # of the very first nobody knows
    return [
        median(
            [
                waiting_ns + transfer_ns
                for waiting_ns, transfer_ns in zip(
                    rank["waiting_ns"][first:], rank["transfer_ns"][first:], strict=True
                )
            ]
        )
        for rank in record["ranks"]
    ]


LINK_NS = 20e6
"""That a collective takes: far longer than what this model computes."""


def test_ranks_train_on_devices_of_their_own(flopwatch: Command, tmp_path: Path) -> None:
    """Gradients are those of one rank with the whole batch: the check compares them. And what
    nothing covers of their communication is exposed."""
    options = ["--model", TINY, "--seq-len", "16", "--micro-batch", "2", "--ranks", "2"]
    words = ["--variant", "none,ddp,full", "--precision", "bf16-mixed"]
    records = run(flopwatch, tmp_path, "training", [*options, *words], FLOP_LINK_NS=LINK_NS)
    assert {v: (r["status"], r["message"]) for v, r in records.items()} == dict.fromkeys(
        ["none", "ddp", "full"], ("ok", None)
    )
    for record in records.values():
        assert len(record["ranks"]) == 2
        assert record["check"] is not None
        losses = record["curves"]["loss"]
        assert len(losses) > 1
        assert min(find_exposed(record)) >= LINK_NS / 2, record["variant"]
    assert "by events on the device" in records["full"]["notes"][0]


ROWS = """
import torch
import flopwatch

suite = flopwatch.Suite(
    "rows", axes={"size": [4]}, variants=["one", "two", "hungry", "refused", "faulty"]
)

@suite.build
def build(case):
    x = torch.ones(case.size, device=case.device)
    calls = {
        "one": lambda: x + 1,
        "two": lambda: x + 0 + 1,
        "hungry": lambda: torch.zeros(2**20, device=case.device) + x[0],
        "refused": lambda: x.tanh(),
        "faulty": lambda: x.sigmoid(),
    }
    return calls[case.variant]
"""


def test_times_are_those_of_the_device_and_failures_are_rows(
    flopwatch: Command, tmp_path: Path
) -> None:
    """A call returns long before its work is done: whoever did not wait would be too fast."""
    (tmp_path / "rows.py").write_text(ROWS)
    records = run(
        flopwatch,
        tmp_path,
        "rows.py",
        (),
        FLOP_OPERATOR_NS=2e6,
        FLOP_MEMORY_BYTES=2**20,
        FLOP_REFUSED="aten::tanh",
        FLOP_FAULT="aten::sigmoid",
    )
    statuses = {variant: record["status"] for variant, record in records.items()}
    assert statuses == {
        "one": "ok",
        "two": "ok",
        "hungry": "oom",
        "refused": "crash",
        "faulty": "crash",
    }
    assert "flop out of memory" in records["hungry"]["message"]
    assert "invalid configuration argument" in records["refused"]["message"]
    assert "illegal memory access" in records["faulty"]["message"]
    assert min(records["one"]["samples_ns"]["call"]) >= 2e6
    assert min(records["two"]["samples_ns"]["call"]) >= 4e6


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_peaks_of_a_device_that_is_throttled(flopwatch: Command, ranks: int) -> None:
    """It is fast at first, and keeps up half of that: what the tool calls sustained."""
    options = [
        "--device",
        "flop",
        "--quick",
        "--dtype",
        "bfloat16",
        "--ranks",
        f"{ranks}",
        "--json",
    ]
    # So slow that what it takes to compute the numbers does not count.
    slow = {"FLOP_FLOPS_PER_S": 1e9, "FLOP_BYTES_PER_S": 1e9, "FLOP_LINK_BYTES_PER_S": 1e8}
    throttled = {"FLOP_THROTTLE_AFTER_NS": 1e9, "FLOP_THROTTLED_CLOCK": 0.5}
    done = flopwatch("peaks", *options, "--out", "peaks.jsonl", **slow, **throttled)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    burst = found["best"]["flops_per_s"]["bfloat16"]
    assert found["best"]["sustained_flops_per_s"]["bfloat16"] < 0.75 * burst
    assert found["setup"]["device"] == "flop"


def test_a_profile_has_kernels_of_the_device(flopwatch: Command, tmp_path: Path) -> None:
    options = ["--model", TINY, "--seq-len", "16", "--micro-batch", "2", "--steps", "2", "--json"]
    done = flopwatch("profile", *options, "--device", "flop", FLOP_OPERATOR_NS=1e5)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["device"] == "flop"
    names = {operator["name"] for operator in found["operators"]}
    assert {"aten::mm", "aten::bmm"} & names


def test_doctor_names_the_device(flopwatch: Command) -> None:
    done = flopwatch("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Flop 1" in done.stdout
