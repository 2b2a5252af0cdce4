"""A process that takes a core at random times: the machine of somebody who is working on it.

Busy and idle stretches have random, exponential lengths of 20 ms to a second.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEAN_S, SHORTEST_S, LONGEST_S = 0.25, 0.02, 1.0
CONDITIONS = ("quiet", "loaded")


@contextmanager
def keep_condition(condition: str, seed: int) -> Iterator[None]:
    """With a neighbour in the condition "loaded"."""
    if condition == "quiet":
        yield
        return
    words = [sys.executable, "-S", str(Path(__file__)), str(seed), str(os.getpid())]
    neighbour = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()  # it has begun
        yield
    finally:
        neighbour.kill()
        neighbour.communicate()


def disturb(seed: int, parent: int) -> None:
    """Until the process that asked for it is gone."""
    draw = random.Random(seed)
    print("ready", flush=True)
    # Busy or idle at first, by lot: the fastest tools see little more than the beginning.
    is_busy = draw.random() < 0.5
    while os.getppid() == parent:
        if not is_busy:
            time.sleep(draw_stretch_s(draw))
        is_busy = False
        end_s = time.perf_counter() + draw_stretch_s(draw)
        while time.perf_counter() < end_s:
            sum(range(1000))


def draw_stretch_s(draw: random.Random) -> float:
    return min(max(draw.expovariate(1 / MEAN_S), SHORTEST_S), LONGEST_S)


if __name__ == "__main__":
    disturb(int(sys.argv[1]), int(sys.argv[2]))
