"""Writes the monitored run that the documentation shows: two ranks on this CPU, a slow loader,
collections of garbage, a rank that is late at times, checkpoints, a death and a restart.

    python docs/tools/monitored_run.py tests/data/examples/run.jsonl

Loops like these are what `flopwatch.Monitor` is for; the stalls are made by sleeping.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import flopwatch

RANKS = 2
BATCH, SEQ_LEN, VOCABULARY = 4, 64, 512
CHECKPOINT_EVERY = 40
DIES_AT, LAST = 150, 240


def make_model() -> nn.Module:
    block = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 128), nn.TransformerEncoder(block, 3), nn.Linear(128, VOCABULARY)
    )


def load(rank: int, first: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches; now and then the next one is late."""
    dice = random.Random(100 * first + rank)
    while True:
        time.sleep(0.12 if dice.random() < 0.03 else 0.002)
        tokens = torch.randint(VOCABULARY, (BATCH, SEQ_LEN + 1))
        yield tokens[:, :-1], tokens[:, 1:]


def train(rank: int, out: str, first: int, port: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters())
    objects = [[number] for number in range(500_000)]  # what a collection looks through
    gc.disable()
    monitor = flopwatch.Monitor(
        model, tokens_per_step=RANKS * BATCH * SEQ_LEN, out=out, name="tiny", first_step=first
    )
    for step, (inputs, targets) in enumerate(monitor.data(load(rank, first)), first):
        with monitor.step():
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            if rank == 1 and step % 25 == 13:
                time.sleep(0.1)  # in a real job: a neighbour on its node
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 30:
                gc.collect()
        if step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            with monitor.pause("checkpoint"):
                time.sleep(0.2)
                distributed.barrier()
        if step == DIES_AT and not first:
            time.sleep(1.5)  # what was measured is on the disk about a second later
            os._exit(1)
        if step == LAST:
            break
    monitor.close()
    del objects
    distributed.destroy_process_group()


def main() -> None:
    out = Path(sys.argv[1])
    out.unlink(missing_ok=True)
    for number, first in enumerate((0, DIES_AT // CHECKPOINT_EVERY * CHECKPOINT_EVERY)):
        context = multiprocessing.get_context("spawn")
        arguments = [(rank, str(out), first, 29_600 + number) for rank in range(RANKS)]
        processes = [context.Process(target=train, args=each) for each in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
