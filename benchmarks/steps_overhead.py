"""What measuring adds to a training step: ours against a loop written by hand, on the same model.

Both run the same tensors, in turn and in random order; the bare loop has a clock before and after
the step and nothing else. Reach: within 1 %.

    python benchmarks/steps_overhead.py
    python benchmarks/steps_overhead.py --model small --micro-batch 4 --rounds 20
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import torch

from flopwatch.analysis.statistics import estimate_ratio, median
from flopwatch.devices.cpu import CpuClock
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.step_workload import SharedModel, make_workload, share_model
from flopwatch.worker.timed_runs import time_phases

REACH = 0.01


def run_by_hand(shared: SharedModel) -> float:
    """Seconds of a step, as anybody would write it."""
    model, ids, optimizer = shared.model, shared.ids, shared.optimizer
    optimizer.zero_grad(set_to_none=True)
    start = time.perf_counter()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="small:layers=2")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    job = TrainingJob(given.model, given.seq_len, micro_batch=given.micro_batch, precision="fp32")
    torch.manual_seed(0)
    workload, shared, clock = make_workload(job, "cpu"), share_model(job, "cpu"), CpuClock()
    runs = {
        "ours": lambda: sum(time_phases(workload, 1, clock)) / 1e9,
        "by hand": lambda: run_by_hand(shared),
    }
    times_s: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(-2, given.rounds):  # the first two warm up
        for name in random.sample(list(runs), len(runs)):
            elapsed_s = runs[name]()
            if round_ >= 0:
                times_s[name].append(elapsed_s)
    ratio = estimate_ratio(times_s["ours"], times_s["by hand"])
    for name, seconds in times_s.items():
        print(f"{name:8} {1e3 * median(seconds):9.2f} ms (median of {len(seconds)})")
    interval = (
        ""
        if ratio.low is None or ratio.high is None
        else f" [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]"
    )
    print(f"measuring adds {ratio.value - 1:+.2%}{interval}; reach: at most {REACH:.0%}")
    sys.exit(ratio.value - 1 > REACH)


if __name__ == "__main__":
    main()
