"""Collectives of the device: the right numbers, on a stream of their own, in time of the device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.conftest import OnDevice

pytestmark = pytest.mark.xdist_group("accelerator")


def run_two_ranks(folder: str, function: str) -> Any:
    """What rank 0 returns; in a process that has used no device yet."""
    from torch import distributed

    from flopwatch.devices.base import open_backend

    is_first = os.fork() != 0
    rank = 0 if is_first else 1
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    backend = open_backend("flop")
    backend.select(rank)
    distributed.init_process_group(
        backend.collectives,
        store=distributed.FileStore(str(Path(folder) / "store"), 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    found = FUNCTIONS[function](rank)
    if not is_first:
        distributed.barrier()
        os._exit(0)
    distributed.barrier()
    os.wait()
    return found


def reduce_and_gather(rank: int) -> dict[str, Any]:
    import torch
    from torch import distributed

    mine = torch.full((4,), float(rank + 1), device="flop")
    summed, mean, host = mine.clone(), mine.clone(), torch.ones(2)
    distributed.all_reduce(summed)
    distributed.all_reduce(mean, op=distributed.ReduceOp.AVG)
    distributed.all_reduce(host)
    whole = torch.empty(8, device="flop")
    distributed.all_gather_into_tensor(whole, mine)
    part = torch.empty(2, device="flop")
    distributed.reduce_scatter_tensor(part, torch.arange(4.0, device="flop"))
    first = mine.clone()
    distributed.broadcast(first, src=1)
    if rank == 0:
        distributed.send(mine, dst=1)
    else:
        distributed.recv(mine, src=0)
    return {
        "device": str(summed.device),
        "sum": summed.tolist(),
        "mean": mean.tolist(),
        "host": host.tolist(),
        "whole": whole.tolist(),
        "part": part.tolist(),
        "broadcast": first.tolist(),
    }


def overlap(rank: int) -> dict[str, Any]:
    """Rank 1 is late, by an operator that rank 0 has not."""
    import torch
    from torch import distributed

    tensor, other = torch.ones(4, device="flop"), torch.ones(4, device="flop")
    torch.accelerator.synchronize()
    marks = [torch.Event("flop", enable_timing=True) for _ in range(3)]
    marks[0].record()
    started_s = torch.tensor([time.monotonic()], dtype=torch.float64)
    if rank == 1:
        other.add_(1)
    work = distributed.all_reduce(tensor, async_op=True)
    marks[1].record()  # the current stream does not wait for it
    work.wait()
    marks[2].record()
    torch.accelerator.synchronize()
    starts_s = [torch.zeros_like(started_s) for _ in range(2)]
    distributed.all_gather(starts_s, started_s)
    return {
        "later": 1e3 * (starts_s[0] - starts_s[1]).item(),
        "before": marks[0].elapsed_time(marks[1]),
        "after": marks[0].elapsed_time(marks[2]),
        "sum": tensor.tolist(),
    }


FUNCTIONS: dict[str, Callable[[int], Any]] = {"reduce": reduce_and_gather, "overlap": overlap}


def test_numbers(on_device: OnDevice, tmp_path: Path) -> None:
    assert on_device(run_two_ranks, str(tmp_path), "reduce") == {
        "device": "flop:0",
        "sum": [3.0] * 4,
        "mean": [1.5] * 4,
        "host": [2.0] * 2,
        "whole": [1.0] * 4 + [2.0] * 4,
        "part": [0.0, 2.0],
        "broadcast": [2.0] * 4,
    }


def test_the_stream_that_waits_takes_their_time_and_that_of_the_last_rank(
    on_device: OnDevice, tmp_path: Path
) -> None:
    costs = {"FLOP_LINK_NS": 200e6, "FLOP_OPERATOR_NS": 300e6}
    found = on_device(run_two_ranks, str(tmp_path), "overlap", **costs)
    assert found["sum"] == [2.0] * 4
    # Rank 0 may have started after rank 1.
    assert found["after"] + found["later"] >= 500
    assert found["after"] >= found["before"] + 200
