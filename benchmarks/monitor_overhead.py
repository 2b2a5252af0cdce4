"""What `flopwatch.Monitor` adds to a training loop: the same loop with and without, in turn.

Blocks of steps alternate in random order, on one model. With the monitor a block has all of it:
hooks, waiting for data, steps, and the thread that stores them about once a second. What it takes
to start a monitor, once a run, is not part of a block. Reach: at most 0.5 % of 20 ms steps.

    python benchmarks/monitor_overhead.py
    python benchmarks/monitor_overhead.py --step-ms 5 --pairs 60
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional

from flopwatch import Monitor
from flopwatch.analysis.statistics import estimate_ratio, median

REACH = 0.005
BLOCK_S = 3.0
"""Some of the thread's rounds must lie in a block."""
LAYERS, WORDS, LENGTH = 4, 256, 64


class Training:
    def __init__(self, hidden_size: int, batch: int) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            hidden_size, 4, 4 * hidden_size, dropout=0.0, batch_first=True
        )
        self.model = nn.Sequential(
            nn.Embedding(WORDS, hidden_size),
            nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
            nn.Linear(hidden_size, WORDS),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.ids = torch.randint(WORDS, (batch, LENGTH))

    def draw(self, steps: int) -> Iterator[Tensor]:
        for _ in range(steps):
            yield self.ids

    def train(self, ids: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(ids)
        functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def run_bare(self, steps: int) -> list[float]:
        """Seconds of each step."""
        ends = [time.perf_counter()]
        for ids in self.draw(steps):
            self.train(ids)
            ends.append(time.perf_counter())
        return [end - begin for begin, end in zip(ends, ends[1:], strict=False)]

    def run_monitored(self, steps: int, out: Path) -> list[float]:
        with Monitor(self.model, tokens_per_step=self.ids.numel(), out=out, live=False) as monitor:
            for ids in monitor.data(self.draw(10**9)):  # until FLOPs are counted
                with monitor.step():
                    self.train(ids)
                if monitor.latest is not None:
                    break
            ends = [time.perf_counter()]
            for ids in monitor.data(self.draw(steps)):
                with monitor.step():
                    self.train(ids)
                ends.append(time.perf_counter())
        return [end - begin for begin, end in zip(ends, ends[1:], strict=False)]


def choose_batch(hidden_size: int, step_s: float) -> Training:
    """A batch whose steps take about so long."""
    batch = 1
    while True:
        training = Training(hidden_size, batch)
        training.run_bare(5)
        found_s = median(training.run_bare(15))
        if found_s >= step_s or batch >= 4096:
            return training
        batch = max(batch + 1, round(batch * min(4.0, step_s / found_s)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=40)
    given = parser.parse_args()
    training = choose_batch(given.hidden_size, given.step_ms / 1e3)
    steps = max(10, round(BLOCK_S / given.step_ms * 1e3))
    means: dict[str, list[float]] = {"bare": [], "monitored": []}
    medians: dict[str, list[float]] = {"bare": [], "monitored": []}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.jsonl"
        for _ in range(given.pairs):
            for name in random.sample(list(means), 2):
                times_s = (
                    training.run_bare(steps)
                    if name == "bare"
                    else training.run_monitored(steps, out)
                )
                means[name].append(fmean(times_s))
                medians[name].append(median(times_s))
    for name, found_s in medians.items():
        print(f"{name:10} {1e3 * median(found_s):8.3f} ms a step ({given.pairs} x {steps} steps)")
    added = report("by blocks' means", means)
    report("by blocks' medians", medians)
    print(f"reach: at most {REACH:.1%}")
    sys.exit(added > REACH)


def report(how: str, times_s: dict[str, list[float]]) -> float:
    ratio = estimate_ratio(times_s["monitored"], times_s["bare"])
    interval = (
        ""
        if ratio.low is None or ratio.high is None
        else f" [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]"
    )
    print(f"the monitor adds {ratio.value - 1:+.2%}{interval}, {how}")
    return ratio.value - 1


if __name__ == "__main__":
    main()
