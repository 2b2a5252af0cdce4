"""One run of two ranks: DDP, fully_shard, gradients that the loop sums up, and a rank without."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from flopwatch import Monitor
from flopwatch.records.record import Record
from flopwatch.records.store import read
from tests.monitor.loops import (
    TOKENS,
    WEIGHTS,
    find_monitored,
    find_rank,
    make_model,
    train,
    train_alone,
)
from tests.rank_tools import run_on_ranks

STEPS = 4
LATE_S = 0.05


class Late(nn.Module):
    """A model whose forward pass takes longer on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def forward(self, ids: Tensor) -> Any:
        if distributed.get_rank() == 1:
            time.sleep(LATE_S)
        return self.inner(ids)


def sum_up(model: nn.Module) -> None:
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)


def train_all(folder: str) -> list[list[float]]:
    """Of each way, the losses of this rank."""
    ddp: nn.Module = DistributedDataParallel(Late())
    shards: Any = fully_shard(Late())
    plain = Late()
    found = []
    for name, model in (("ddp", ddp), ("shards", shards), ("plain", plain)):
        with Monitor(
            model, tokens_per_step=2 * TOKENS, name=name, out=Path(folder) / "run.jsonl", live=False
        ) as monitor:
            losses = train(
                monitor,
                model,
                STEPS,
                inside=(lambda step: sum_up(plain)) if name == "plain" else lambda step: None,
            )
            found.append(losses)
    if distributed.get_rank() == 0:  # rank 1 has no monitor
        with Monitor(ddp, name="alone", out=Path(folder) / "run.jsonl", live=False) as monitor:
            found.append(train(monitor, ddp, STEPS))
    else:
        train_alone(ddp, STEPS)
    distributed.barrier()
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("ranks")
    run_on_ranks(2, train_all, str(folder))
    return {record.variant: record for record in read(folder / "run.jsonl").records}


@pytest.mark.parametrize("way", ["ddp", "shards", "plain"])
def test_ranks_are_one_run(way: str, runs: dict[str, Record]) -> None:
    record = runs[way]
    monitored = find_monitored(record)
    assert (monitored.world_size, monitored.data_parallel) == (2, 2)
    assert [rank.rank for rank in monitored.ranks] == [0, 1]
    assert monitored.end == "closed"
    assert record.facts["tokens"] == 2 * TOKENS
    for rank in monitored.ranks:
        assert rank.steps == list(range(STEPS))
        parts = {"data", "forward", "loss", "backward", "communication", "optimizer"}
        assert set(rank.parts_ns) == parts
        assert None not in rank.arrived_ns
    flops = monitored.flops
    assert flops is not None
    assert flops.model == 6 * WEIGHTS  # of the whole model, however it is shared
    assert record.flops["step"] == {"float32": 6 * WEIGHTS * 2 * TOKENS}


@pytest.mark.parametrize("way", ["ddp", "plain"])
def test_who_is_early_waits(way: str, runs: dict[str, Record]) -> None:
    """Rank 1 is late, and steps of both take as long: it shows in who waits."""
    early, late = (find_rank(runs[way], rank) for rank in (0, 1))
    waited = [sum(ns or 0 for ns in rank.parts_ns["communication"]) for rank in (early, late)]
    assert waited[0] - waited[1] > 0.5 * STEPS * LATE_S * 1e9
    assert sum(late.parts_ns["forward"]) > STEPS * LATE_S * 1e9  # type: ignore[arg-type]


def test_a_rank_without_a_monitor_keeps_nobody_waiting(runs: dict[str, Record]) -> None:
    monitored = find_monitored(runs["alone"])
    assert [rank.rank for rank in monitored.ranks] == [0]
    assert len(runs["alone"].rounds) == STEPS
