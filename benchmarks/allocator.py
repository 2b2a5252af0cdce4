"""What ``--allocator retain`` is worth: the time of a 48 MB clone under either allocator.

    python benchmarks/allocator.py        about half a minute

Each measurement is a fresh process on one thread, and the two allocators take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from flopwatch.settings import Allocator
from flopwatch.worker import allocator

CLONE_BYTES = 48 * 2**20
TURNS = 3
WARMUP = 20
SAMPLES = 31


def main() -> None:
    if len(sys.argv) > 1:
        print(time_clones("retain" if sys.argv[1] == "retain" else "default"))
        return
    times_ms: dict[Allocator, list[float]] = {"default": [], "retain": []}
    texts = {}
    for _ in range(TURNS):
        for choice, taken_ms in times_ms.items():
            taken, texts[choice] = run_child(choice)
            taken_ms.append(taken)
    for choice, taken_ms in times_ms.items():
        each = ", ".join(f"{taken:.2f}" for taken in taken_ms)
        print(f"{choice:8} {median(taken_ms):7.2f} ms   (each: {each}; {texts[choice]})")
    print(f"ratio    {median(times_ms['default']) / median(times_ms['retain']):7.2f}")


def run_child(choice: Allocator) -> tuple[float, str]:
    child = subprocess.run(
        [sys.executable, __file__, choice],
        env={**os.environ, **allocator.preload_environment(choice)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    time_ms, in_force = child.stdout.strip().split(" ", 1)
    return float(time_ms), in_force


def time_clones(choice: Allocator) -> str:
    import torch

    in_force = allocator.apply(choice)
    torch.set_num_threads(1)
    source = torch.ones(CLONE_BYTES // 4)
    times_ms = []
    for _ in range(WARMUP + SAMPLES):
        start_ns = time.perf_counter_ns()
        copy = source.clone()
        times_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
        del copy
    return f"{median(times_ms[WARMUP:])} {in_force}"


if __name__ == "__main__":
    main()
