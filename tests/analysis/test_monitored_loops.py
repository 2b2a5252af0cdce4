"""Real training loops with real stalls, through the real monitor: each is attributed to what made
it. How long anything takes is not judged."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import flopwatch
from flopwatch.analysis.monitored_run import RunSummary, summarize_run
from flopwatch.records.store import read

STALL_S = 0.15
DATA = (20, 45, 70, 95)
GARBAGE = (30, 55, 80, 105)
PAUSES = (35, 60, 85)
UNKNOWN = (40, 90)


def load(batches: int, late: tuple[int, ...] = ()) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for place in range(batches):
        if place in late:
            time.sleep(STALL_S)
        yield torch.randn(32, 64, generator=generator)


def make_garbage() -> list[list[int]]:
    """So many objects that looking through them takes a while."""
    return [[number] for number in range(1_500_000)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """One process, one loop, stalls of all kinds at known steps."""
    file = tmp_path_factory.mktemp("loop") / "run.jsonl"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    objects = make_garbage()
    gc.freeze()
    gc.disable()
    try:
        with flopwatch.Monitor(model, tokens_per_step=32, out=file, live=False) as monitor:
            for place, batch in enumerate(monitor.data(load(120, late=DATA))):
                with monitor.step():
                    model(batch).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    time.sleep(0.005)
                    if place in GARBAGE:
                        gc.unfreeze()
                        gc.collect()
                        gc.freeze()
                    if place in UNKNOWN:
                        time.sleep(STALL_S)
                if place in PAUSES:
                    with monitor.pause("checkpoint"):
                        time.sleep(STALL_S)
    finally:
        gc.enable()
        gc.unfreeze()
        objects.clear()
    found = summarize_run(read(file).records)
    assert found is not None
    return found


def test_stalls_of_a_real_loop_have_their_causes(run: RunSummary) -> None:
    causes = {step.number: step.cause for _, step in run.slow}
    assert {place: causes.get(place) for place in DATA} == dict.fromkeys(DATA, "data")
    assert {place: causes.get(place) for place in GARBAGE} == dict.fromkeys(
        GARBAGE, "garbage collection"
    )
    assert {place: causes.get(place) for place in UNKNOWN} == dict.fromkeys(UNKNOWN, "unknown")


def test_pauses_of_a_real_loop_are_no_slow_steps(run: RunSummary) -> None:
    (pause,) = run.pauses
    assert (pause.name, pause.count) == ("checkpoint", len(PAUSES))
    assert pause.total_ns >= len(PAUSES) * STALL_S * 1e9
    assert run.goodput is not None
    assert run.goodput.lost_s["pauses"] == pytest.approx(pause.total_ns / 1e9)
    after = {place + 1 for place in PAUSES}
    long_ones = [step for _, step in run.slow if step.number in after]
    assert all(step.excess_ns < STALL_S * 1e9 / 2 for step in long_ones)


def test_the_breakdown_of_a_real_loop_adds_up(run: RunSummary) -> None:
    assert sum(part.mean_ns for part in run.parts) == pytest.approx(run.mean_step_ns)
    names = {part.name for part in run.parts}
    assert {"data", "forward", "backward", "optimizer", "other"} <= names
    assert run.steps == 120
    assert run.utilisation is not None
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
    for place in range(60):
        with monitor.step():
            if rank == 1 and place in late:
                time.sleep(0.15)
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_slow_rank_is_found_from_who_waits(tmp_path: Path) -> None:
    late = (20, 30, 40, 50)
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
