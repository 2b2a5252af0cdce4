"""Training a small language model on bytes, for a fixed number of tokens.

Everything but the model is the same for all that are compared: text, order of batches, schedule,
number of tokens. It answers what a speed costs in loss, at this size; it is no recipe for training.

Text that every machine has: the sources of Python's standard library, as bytes.
"""

from __future__ import annotations

import hashlib
import math
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from flopwatch.errors import FlopwatchError

VALIDATION_EVERY = 16
"""One file in so many is kept for validation."""
LIMIT_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    train: bytes
    validation: bytes

    @property
    def digest(self) -> str:
        """Equal where the text is: another Python has other sources."""
        return hashlib.sha256(self.train + b"\0" + self.validation).hexdigest()[:12]


@cache
def read_standard_library() -> Text:
    """The modules at the top of the standard library, in alphabetical order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    if len(texts) < VALIDATION_EVERY:
        raise FlopwatchError(
            f"the sources of Python's standard library are not in {folder}; "
            "use a Python that has them"
        )
    validation = texts[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    del texts[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    return Text(train=b"".join(texts)[:LIMIT_BYTES], validation=b"".join(validation))


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    sequences: int = 16
    tokens: int = 128
    """In one sequence."""
    train_tokens: int = 1_000_000
    """At least so many are trained on."""
    learning_rate: float = 1e-3
    warmup_share: float = 0.05
    points: int = 25
    """How many points the loss curve has, if there are enough steps."""
    steps_between: int = 10
    """At least so many lie between points: validating should not take longer than training."""
    validation_batches: int = 8

    @property
    def tokens_per_step(self) -> int:
        return self.sequences * self.tokens

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.train_tokens / self.tokens_per_step))

    def rate(self, step: int) -> float:
        """Linear warm-up, then constant: with a rate that falls, a loss in mid-training could not
        be compared with one at the end, as it is at equal loss."""
        warmup = max(1, round(self.warmup_share * self.steps))
        return self.learning_rate * min(1.0, (step + 1) / warmup)


def train(
    model: nn.Module, text: Text, schedule: Schedule, seed: int = 0
) -> Iterator[dict[str, float]]:
    """Train, and yield a point of the curve now and then, the last one after the last step."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, weight_decay=0.1)
    batches = draw_batches(text.train, schedule, seed)
    validation = draw_batches(text.validation, schedule, seed=0)
    held_out = [next(validation).to(device) for _ in range(schedule.validation_batches)]
    every = max(schedule.steps_between, round(schedule.steps / schedule.points))
    losses: list[Tensor] = []
    for step in range(schedule.steps):
        ids = next(batches).to(device)
        loss: Tensor = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        optimizer.step()
        losses.append(loss.detach())
        done = step + 1
        if done % every == 0 or done == schedule.steps:
            yield {
                "step": done,
                "tokens": done * schedule.tokens_per_step,
                "train_loss": float(torch.stack(losses).mean()),
                "validation_loss": evaluate(model, held_out),
            }
            losses = []


@torch.no_grad()
def evaluate(model: nn.Module, batches: list[Tensor]) -> float:
    """Mean loss, in nats a byte."""
    model.eval()
    losses = [model(input_ids=ids, labels=ids).loss for ids in batches]
    model.train()
    return float(torch.stack(losses).mean())


def draw_batches(text: bytes, schedule: Schedule, seed: int) -> Iterator[Tensor]:
    """Batches from random places of the text, the same ones for the same seed."""
    content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(schedule.tokens)
    while True:
        starts = torch.randint(
            len(content) - schedule.tokens, (schedule.sequences, 1), generator=generator
        )
        yield content[starts + offsets].long()
