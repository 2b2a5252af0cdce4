"""Steps on a device that works through a queue: who waits for whom, Python or the device, and the
computation or a collective that runs beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flopwatch.analysis.statistics import median
from tests.accelerator.conftest import Command
from tests.accelerator.test_commands import TINY, find_exposed, run

pytestmark = pytest.mark.xdist_group("accelerator")

MODEL = ["--model", TINY, "--seq-len", "16", "--micro-batch", "2", "--precision", "fp32"]
JOB = [*MODEL, "--ranks", "2", "--variant", "none,full"]


@pytest.mark.parametrize(
    ("costs", "kinds"),
    [
        ({"FLOP_LAUNCH_NS": 3e5, "FLOP_OPERATOR_NS": 1e3}, {"launch-bound"}),
        pytest.param({"FLOP_OPERATOR_NS": 3e6}, set(), marks=pytest.mark.slow),
    ],
)
def test_launches_that_are_slow_are_found(
    flopwatch: Command, tmp_path: Path, costs: dict[str, float], kinds: set[str]
) -> None:
    records = run(flopwatch, tmp_path, "steps", [*MODEL, "--variant", "eager,cuda-graph"], **costs)
    assert records["cuda-graph"]["status"] == "unsupported"
    assert "the device is flop; leave cuda-graph" in records["cuda-graph"]["message"]
    queue = records["eager"]["queue"]
    assert len(queue["enqueue_ns"]) == len(records["eager"]["rounds"])
    done = flopwatch("check", "results/steps.jsonl", "--json")
    found = {warning["kind"] for warning in json.loads(done.stdout)}
    assert found & {"launch-bound"} == kinds


@pytest.mark.slow
def test_communication_beside_computation_is_not(flopwatch: Command, tmp_path: Path) -> None:
    """A block computes for far longer than its parameters travel."""
    costs = {"FLOP_OPERATOR_NS": 2e6, "FLOP_LINK_NS": 1e6}
    options = [*JOB, "--model", TINY.replace("layers=1", "layers=4")]
    records = run(flopwatch, tmp_path, "training", options, **costs)
    full = records["full"]
    # Before the first block and after the last gradients there is nothing to hide behind; of the
    # 13 collectives between, none needs to be waited for.
    step_ns = median([sum(phases) for phases in zip(*full["samples_ns"].values(), strict=True)])
    for exposed_ns in find_exposed(full):
        assert exposed_ns <= 0.1 * step_ns
    for rank in full["ranks"]:  # and of what they take, 1 ms each, most is hidden
        assert median(rank["overlapped_ns"][1:]) >= 10e6


@pytest.mark.slow
def test_short_steps_run_in_windows(flopwatch: Command, tmp_path: Path) -> None:
    records = run(flopwatch, tmp_path, "training", JOB)
    for record in records.values():
        assert record["status"] == "ok", record["message"]
        assert record["calls_per_sample"][0] == 1
        assert record["queue"]["enqueue_ns"][0] is None
        losses = record["curves"]["loss"]
        assert len(losses) > sum(record["calls_per_sample"])  # and those before each sample
