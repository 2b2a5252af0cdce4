"""The noise of a machine: what two identical variants take, round by round, for several seconds.

Rounds are as those of flopwatch: both variants in random order, an untimed call before each sample.
Nothing is sorted or left out, so that slow moments, drift and neighbours that resemble each other
are kept. The two are

    shared    one function on one set of tensors, as two lambdas of a user are
    rebuilt   functions on tensors of their own, which are built anew every few rounds as those of a
              suite are (`flopwatch.worker.renewal`): where they lie makes one of the two faster
              until the next renewal

Which of two identical variants is called a is chance. So the same noise gives many comparisons:
names are drawn anew, by round where tensors are shared, otherwise from renewal to renewal, and
neither of the variants is the faster one. That makes a ratio of 1 the truth.
"""

from __future__ import annotations

import gc
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flopwatch.devices.cpu import CpuClock
from flopwatch.suites.workload import Workload
from flopwatch.worker.renewal import Renewal
from flopwatch.worker.sampling import run_once
from flopwatch.worker.timed_runs import time_phases
from verdict_tools.neighbour import CONDITIONS, keep_condition
from verdict_tools.operations import OPERATIONS, make_loop, time_unit

Array = NDArray[np.float64]

PLACEMENTS = ("shared", "rebuilt")
ROWS = 64
"""Of a unit, of which a sample takes as many as it needs for its length."""
SAMPLES_S = {"matmul": 0.4e-3, "gelu": 0.8e-3, "softmax": 2e-3}
WARMUP_CALLS = 50


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Two identical variants, in rounds."""

    operation: str
    condition: str
    placement: str
    first_ns: list[float]
    """The sample that was taken first in each round, and the other one."""
    second_ns: list[float]
    is_a_first: list[bool]
    rounds_ns: list[float]
    """From the start of a round to the start of the next: samples, untimed calls, renewals."""
    renewed_rounds: list[int]
    """Before which tensors were built anew."""

    @property
    def seconds(self) -> float:
        return sum(self.rounds_ns) / 1e9

    @property
    def title(self) -> str:
        """
        >>> two = {"first_ns": [1e6, 2e6, 1e6], "second_ns": [1e6, 1e6, 1e6]}
        >>> rest = {"is_a_first": [True] * 3, "rounds_ns": [5e6] * 3, "renewed_rounds": []}
        >>> Noise(operation="gelu", condition="quiet", placement="shared", **two, **rest).title
        'gelu 1.0 ms'
        """
        return f"{self.operation} {np.median([self.first_ns, self.second_ns]) / 1e6:.1f} ms"


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Rounds of two variants, a and b, that follow one another; after the last comes the first."""

    a_ns: Array
    b_ns: Array
    rest_ns: Array
    """What else each round takes."""


def record_all(seconds: float) -> list[Noise]:
    """In one process after the other, as `record` is called."""
    from verdict_tools.fresh_process import call_in_fresh_process

    noises: list[Noise] = []
    for condition in CONDITIONS:
        for placement in PLACEMENTS:
            for operation in SAMPLES_S:
                with keep_condition(condition, seed=len(noises)):
                    noise = call_in_fresh_process(record, operation, condition, placement, seconds)
                noises.append(noise)
                what = f"{condition}, {placement}: {noise.title}"
                print(f"recorded {what}, {len(noise.first_ns)} rounds", flush=True)
    return noises


class Variant:
    """A workload that a renewal replaces."""

    def __init__(self, variant: str, workload: Workload) -> None:
        self.variant = variant
        self.workload = workload


def record(operation: str, condition: str, placement: str, seconds: float) -> Noise:
    """In this process. It is the caller who keeps the condition."""
    import torch

    # On two threads, each waiting for the other, a machine that others use gives hardly any rounds.
    torch.set_num_threads(1)
    sample_s, make_unit = SAMPLES_S[operation], OPERATIONS[operation].make_unit
    units = math.ceil(sample_s / time_unit(make_unit(ROWS)))

    def build(_: str) -> Workload:
        return Workload(phases={operation: make_loop(make_unit(ROWS), units)})

    variants = [Variant(name, build(name)) for name in "ab"]
    renewal: Renewal | None = None
    if placement == "rebuilt":
        renewal = Renewal(build, sample_s, time.perf_counter)
        renewal.start(seconds)
    else:
        variants[1].workload = variants[0].workload
    for variant in variants:
        for _ in range(WARMUP_CALLS):
            run_once(variant.workload)
    rounds, starts_ns = take_rounds(variants, renewal, seconds)
    return Noise(
        operation=operation,
        condition=condition,
        placement=placement,
        first_ns=[first for _, first, _ in rounds],
        second_ns=[second for _, _, second in rounds],
        is_a_first=[is_a_first for is_a_first, _, _ in rounds],
        rounds_ns=np.diff(np.array(starts_ns, dtype=float)).tolist(),
        renewed_rounds=renewal.rounds if renewal else [],
    )


def take_rounds(
    variants: list[Variant], renewal: Renewal | None, seconds: float
) -> tuple[list[tuple[bool, float, float]], list[int]]:
    """Whether a was first, and both times; and when each round began and the last one ended."""
    clock, draw = CpuClock(), random.Random(0)
    rounds: list[tuple[bool, float, float]] = []
    starts_ns = [time.perf_counter_ns()]
    gc.disable()
    while (elapsed_s := (starts_ns[-1] - starts_ns[0]) / 1e9) < seconds:
        if renewal is not None and renewal.is_due(len(rounds), 0, elapsed_s):
            renewal.renew(variants, len(rounds), run_once)
        order = draw.sample(variants, 2)
        times_ns: list[float] = []
        for variant in order:
            run_once(variant.workload)
            times_ns += time_phases(variant.workload, 1, clock)
        rounds.append((order[0] is variants[0], times_ns[0], times_ns[1]))
        starts_ns.append(time.perf_counter_ns())
    gc.enable()
    return rounds, starts_ns


def draw_window(noise: Noise, rng: np.random.Generator, slowdown: Array | None = None) -> Window:
    """All rounds from a random one on, with names drawn anew. `slowdown` has a factor for the first
    and one for the second sample of each round."""
    count = len(noise.first_ns)
    samples_ns = np.array([noise.first_ns, noise.second_ns])
    rest_ns = (np.array(noise.rounds_ns) - samples_ns.sum(axis=0)).clip(min=0)
    if noise.placement == "shared":
        is_a_first = rng.random(count) < 0.5
    else:
        stretch = np.searchsorted(noise.renewed_rounds, np.arange(count), side="right")
        is_swapped = rng.random(len(noise.renewed_rounds) + 1) < 0.5
        is_a_first = np.array(noise.is_a_first) ^ is_swapped[stretch]
    if slowdown is not None:
        samples_ns = samples_ns * slowdown
    start = int(rng.integers(count))
    first_ns, second_ns = np.roll(samples_ns, -start, axis=1)
    is_a_first = np.roll(is_a_first, -start)
    return Window(
        a_ns=np.where(is_a_first, first_ns, second_ns),
        b_ns=np.where(is_a_first, second_ns, first_ns),
        rest_ns=np.roll(rest_ns, -start),
    )


def write_noises(path: Path, noises: list[Noise]) -> None:
    path.write_bytes(msgspec.json.encode(noises))


def read_noises(path: Path) -> list[Noise]:
    return msgspec.json.decode(path.read_bytes(), type=list[Noise])
