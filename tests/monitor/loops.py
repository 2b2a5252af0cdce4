"""Tiny trainings that monitors watch in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from flopwatch import Monitor
from flopwatch.monitor.base import RunFacts, StepFacts
from flopwatch.records.monitored import End, Monitored, RankSteps
from flopwatch.records.record import Record
from flopwatch.records.store import read

WORDS, HIDDEN, BATCH, LENGTH = 50, 16, 4, 8
TOKENS = BATCH * LENGTH
WEIGHTS = HIDDEN * HIDDEN + HIDDEN * WORDS
"""Of its two linear layers."""


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(WORDS, HIDDEN),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, WORDS, bias=False),
    )


def draw(steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(WORDS, (BATCH, LENGTH), generator=generator) for _ in range(steps)]


def find_loss(model: Callable[..., Any], ids: Tensor) -> Tensor:
    logits: Tensor = model(ids)
    return functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def train(
    monitor: Monitor,
    model: nn.Module,
    steps: int = 6,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    micro_batches: int = 1,
    inside: Callable[[int], object] = lambda step: None,
) -> list[float]:
    """The losses, which do not depend on who is watching."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number, ids in enumerate(monitor.data(draw(steps))):
        with monitor.step():
            optimizer.zero_grad()
            for _ in range(micro_batches):
                loss = find_loss(model, ids)
                loss.backward()
            inside(number)
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def train_alone(model: nn.Module | None = None, steps: int = 6) -> list[float]:
    """The same without a monitor."""
    model = model or make_model()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for ids in draw(steps):
        optimizer.zero_grad()
        loss = find_loss(model, ids)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@dataclass
class Ear:
    """A tracker that keeps all it is told."""

    runs: list[RunFacts] = field(default_factory=list)
    told: list[StepFacts] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    def start(self, run: RunFacts) -> None:
        self.runs.append(run)

    def steps(self, steps: Sequence[StepFacts]) -> None:
        self.told += steps

    def close(self, end: End) -> None:
        self.ends.append(end)


def read_run(path: Path) -> Record:
    (record,) = read(path).records
    return record


def find_monitored(record: Record) -> Monitored:
    assert record.monitored is not None
    return record.monitored


def find_rank(record: Record, rank: int = 0) -> RankSteps:
    return next(each for each in find_monitored(record).ranks if each.rank == rank)
