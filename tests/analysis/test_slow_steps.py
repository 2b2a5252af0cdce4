"""Stalls of known causes, in noise, are found and attributed to them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from flopwatch.analysis.monitored_steps import Start, read_start
from flopwatch.analysis.slow_steps import find_levels
from tests.monitor_tools import MS, Loop

INJECTED = ("data", "garbage collection", "other ranks", "pause")
"""A slow loader, a collection of garbage, a slow rank, and what a checkpoint leaves behind."""


def read(loop: Loop) -> Start:
    found = read_start(loop.record())
    assert found is not None
    return found


@pytest.mark.parametrize("cause", INJECTED)
def test_stalls_in_noise_are_attributed_to_their_cause(cause: str) -> None:
    """25 runs a cause, each with noise, a size and places of its own: a hundred runs."""
    for seed in range(25):
        rng = np.random.default_rng([INJECTED.index(cause), seed])
        loop = Loop(
            steps=int(rng.integers(60, 400)),
            seed=int(rng.integers(2**31)),
            ranks=4 if cause == "other ranks" or seed % 2 else 1,
            sigma=float(rng.uniform(0.01, 0.08)),
        )
        places = sorted(rng.choice(np.arange(10, loop.steps - 1), size=4, replace=False).tolist())
        size_ns = float(rng.uniform(20, 200)) * MS
        late = int(rng.integers(1, 4)) if cause == "other ranks" else 0
        for place in places:
            loop.stall(place, cause, size_ns, rank=late)
        found = read(loop).slow
        assert [step.place for step in found] == places, (seed, loop)
        assert Counter(step.cause for step in found) == {cause: 4}, (seed, found)
        if late:
            assert {step.rank for step in found} == {late}


@pytest.mark.parametrize("cause", INJECTED)
def test_stalls_in_recorded_noise_are_attributed_to_their_cause(cause: str) -> None:
    """The same with the noise of a real loop on a busy machine, which has slow steps of its own."""
    for seed in range(25):
        rng = np.random.default_rng([10 + INJECTED.index(cause), seed])
        loop = Loop(
            steps=int(rng.integers(100, 400)),
            seed=int(rng.integers(2**31)),
            ranks=4 if cause == "other ranks" or seed % 2 else 1,
            is_recorded=True,
        )
        places = rng.choice(np.arange(10, loop.steps - 1), size=4, replace=False).tolist()
        size_ns = float(rng.uniform(150, 400)) * MS
        for place in places:
            loop.stall(place, cause, size_ns, rank=2 if cause == "other ranks" else 0)
        found = {step.place: step.cause for step in read(loop).slow}
        assert {place: found.get(place) for place in places} == dict.fromkeys(places, cause), seed


def test_of_several_causes_each_step_has_its_own() -> None:
    loop = Loop(300, ranks=2, seed=3)
    told = {
        40: "data", 80: "garbage collection", 120: "other ranks", 160: "communication",
        200: "allocator retries", 240: "throttling", 280: "unknown",
    }  # fmt: skip
    for place, cause in told.items():
        loop.stall(place, cause, 40 * MS)
    found = read(loop).slow
    assert {step.place: step.cause for step in found} == told
    parts = {step.cause: step.part for step in found}
    assert parts["unknown"] == "optimizer"
    assert parts["other ranks"] == parts["communication"] == "communication"


def test_garbage_collected_while_the_loader_runs_is_no_fault_of_the_data() -> None:
    loop = Loop(100, seed=4)
    loop.stall(50, "data", 50 * MS)
    loop.events.append((50, "gc", "2", 50 * MS))
    assert [step.cause for step in read(loop).slow] == ["garbage collection"]


def test_what_is_there_in_most_steps_explains_no_slow_one() -> None:
    loop = Loop(200, seed=5)
    loop.events += [(place, "throttled", "power", 20 * MS) for place in range(200)]
    loop.stall(100, "unknown", 50 * MS)
    assert [step.cause for step in read(loop).slow] == ["unknown"]


def test_noise_alone_has_hardly_any_slow_steps() -> None:
    found = [len(read(Loop(400, seed=seed, ranks=1 + seed % 2)).slow) for seed in range(20)]
    assert sum(found) <= 1


def test_a_run_that_becomes_slower_for_good_has_no_slow_steps() -> None:
    loop = Loop(600, seed=6)
    loop.parts_ns[0]["backward"][300:] *= 2
    assert read(loop).slow == []


def test_a_stretch_of_slow_steps_is_found() -> None:
    loop = Loop(1000, seed=7)
    loop.parts_ns[0]["data"][500:560] += 30 * MS
    assert [step.place for step in read(loop).slow] == list(range(500, 560))


def test_first_steps_are_apart_also_where_there_are_more_than_told() -> None:
    loop = Loop(100, seed=8)
    loop.parts_ns[0]["forward"][5:8] += 100 * MS
    start = read(loop)
    assert start.first_steps == 8
    assert start.slow == []


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_very_short_runs_are_read(steps: int) -> None:
    start = read(Loop(steps))
    assert len(start.steady_ns) >= 1
    assert start.slow == []


def test_levels_follow_the_median_of_neighbours() -> None:
    values = np.full(1000, 10.0)
    values[400:410] = 50.0
    level, scatter = find_levels(values)
    assert (level == 10).all()
    assert (scatter == 0).all()


def test_garbage_collected_in_a_pause_explains_no_step() -> None:
    loop = Loop(100, seed=9)
    loop.events += [(50, "gc", "2", 50 * MS), (50, "pause", "evaluation", 900 * MS)]
    loop.stall(50, "unknown", 50 * MS)
    assert [step.cause for step in read(loop).slow] == ["pause"]
