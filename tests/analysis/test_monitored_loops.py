"""Real training loops with stalls, through the real monitor: each is attributed to what made it.

In one process time passes only when it is told to, so that no load of the machine changes what is
found; of two ranks it is real."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flopwatch
from flopwatch.analysis.monitored_run import RunSummary, summarize_run
from flopwatch.records.store import read

STEPS = 200
MS = 1_000_000
STALL_NS = 80 * MS
DATA = (20, 45, 70, 95, 160)
GARBAGE = (30, 55, 80, 105, 170)
PAUSES = (35, 60, 85, 150)
UNKNOWN = (40, 90)


class ToldClock:
    """In place of the module `time`: its counter moves when somebody spends time."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.noise = np.random.default_rng(0)

    def spend(self, time_ns: float) -> None:
        self.now_ns += round(time_ns * float(np.exp(0.08 * self.noise.normal())))

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Layer(nn.Module):
    def __init__(self, clock: ToldClock) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.clock = clock
        weight = self.linear.weight
        weight.register_hook(lambda _: clock.spend(9 * MS))  # type: ignore[no-untyped-call]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.clock.spend(5 * MS)
        return self.linear(inputs)  # type: ignore[no-any-return]


def load(clock: ToldClock) -> Iterator[torch.Tensor]:
    for place in range(STEPS):
        clock.spend(1 * MS)
        if place in DATA:
            clock.spend(STALL_NS)
        yield torch.ones(4, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    file = tmp_path_factory.mktemp("loop") / "run.jsonl"
    clock = ToldClock()
    model = Layer(clock)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def collect(phase: str, _: object) -> None:
        if phase == "start":  # after the monitor has seen it
            clock.spend(STALL_NS)

    gc.disable()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("training_monitor", "run_recorder", "run_lines", "run_arguments"):
            patch.setattr(f"flopwatch.monitor.{name}.time", clock)
        with flopwatch.Monitor(model, tokens_per_step=32, out=file, live=False) as monitor:
            gc.callbacks.append(collect)
            for place, batch in enumerate(monitor.data(load(clock))):
                with monitor.step():
                    model(batch).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    clock.spend(STALL_NS if place in UNKNOWN else 1 * MS)
                    if place in GARBAGE:
                        gc.collect()
                if place in PAUSES:
                    with monitor.pause("checkpoint"):
                        clock.spend(STALL_NS)
            gc.callbacks.remove(collect)
    gc.enable()
    found = summarize_run(read(file).records)
    assert found is not None
    return found


def test_stalls_of_a_real_loop_have_their_causes(run: RunSummary) -> None:
    told = {
        **dict.fromkeys(DATA, "data"),
        **dict.fromkeys(GARBAGE, "garbage collection"),
        **dict.fromkeys(UNKNOWN, "unknown"),
    }
    assert {step.number: step.cause for _, step in run.slow} == told


def test_pauses_of_a_real_loop_are_no_slow_steps(run: RunSummary) -> None:
    (pause,) = run.pauses
    assert (pause.name, pause.count) == ("checkpoint", len(PAUSES))
    assert pause.total_ns == pytest.approx(len(PAUSES) * STALL_NS, rel=0.2)
    assert run.goodput is not None
    assert run.goodput.lost_s["pauses"] == pytest.approx(pause.total_ns / 1e9)


def test_the_breakdown_of_a_real_loop_adds_up(run: RunSummary) -> None:
    assert sum(part.mean_ns for part in run.parts) == pytest.approx(run.mean_step_ns)
    parts = {part.name: part.mean_ns / MS for part in run.parts}
    assert parts["forward"] == pytest.approx(5, rel=0.1)
    assert parts["backward"] == pytest.approx(9, rel=0.1)
    assert parts["data"] == pytest.approx(1 + len(DATA) * 80 / STEPS, rel=0.2)
    assert run.steps == STEPS
    assert run.tokens is not None
    assert run.tokens.per_step == 32


RANKS = """
import sys, time, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
import flopwatch

out, rank, port, late = sys.argv[1], int(sys.argv[2]), sys.argv[3], set(map(int, sys.argv[4:]))
address = f"tcp://127.0.0.1:{port}"
distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with flopwatch.Monitor(model, tokens_per_step=64, out=out, live=False) as monitor:
    for place in range(50):
        with monitor.step():
            if rank == 1 and place in late:
                time.sleep(0.5)
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_slow_rank_is_found_from_who_waits(tmp_path: Path) -> None:
    late = (20, 30, 40)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program, out = tmp_path / "ranks.py", tmp_path / "run.jsonl"
    program.write_text(RANKS)
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(out), str(rank), str(port), *map(str, late)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    found = summarize_run(read(out).records)
    assert found is not None
    assert found.ranks_seen == 2
    causes = {step.number: (step.cause, step.rank) for _, step in found.slow}
    assert {n: causes.get(n) for n in late} == dict.fromkeys(late, ("other ranks", 1)), json.dumps(
        found.to_dict(), default=str
    )
    assert found.stragglers is not None
    assert found.stragglers.rank == 1
