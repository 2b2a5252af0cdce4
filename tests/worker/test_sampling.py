"""Exact behaviour of warm-up, rounds and stopping, on a clock that tests control."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest

from flopwatch.analysis.statistics import (
    estimate_median,
    estimate_ratio,
    is_stalled,
    is_steady,
    judge,
)
from flopwatch.settings import SETTLED_INTERVAL, TARGET_INTERVAL, Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.sampling import (
    MIN_ROUNDS,
    MIN_SAMPLE_NS,
    First,
    Observer,
    Outcome,
    Progress,
    Sampler,
)
from flopwatch.worker.timed_runs import time_phases
from tests.conftest import FakeClock

pytestmark = pytest.mark.usefixtures("uncollected")


class Hooks(Observer):
    """An observer made of the functions that a test is interested in."""

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        for name, hook in hooks.items():
            setattr(self, name, hook)


def run(
    clock: FakeClock, workloads: dict[str, Workload], **options: Any
) -> tuple[Sampler, Outcome]:
    settings = options.pop("settings", Settings())
    first_calls = options.pop("first_calls", None)
    sampler = Sampler(
        workloads,
        baseline=next(iter(workloads)),
        settings=settings,
        target=clock,
        now_s=clock.now_s,
        first_calls=first_calls,
        observer=Hooks(**options),
    )
    return sampler, sampler.run()


def test_every_round_takes_every_variant_once(clock: FakeClock) -> None:
    sampler, _ = run(clock, {"a": clock.workload(30e6), "b": clock.workload(40e6)})
    assert [series.variant for series in sampler.series] == ["a", "b"]
    for series in sampler.series:
        assert series.rounds == list(range(sampler.round))
        assert series.calls_per_sample == [1] * sampler.round


def test_times_are_exact(clock: FakeClock) -> None:
    sampler, outcome = run(clock, {"a": clock.workload(30e6, 50e6)})
    assert outcome.stop_reason == "precise"
    assert sampler.series[0].phase_ns == [[30e6, 50e6]] * sampler.round


def test_order_inside_rounds_is_drawn_anew_from_the_seed(clock: FakeClock) -> None:
    def orders(seed: int) -> list[str]:
        own, seen = FakeClock(), []
        workloads = {name: own.workload(30e6) for name in "abcd"}
        run(own, workloads, settings=Settings(seed=seed), announce=seen.append)
        return seen

    first = orders(1)
    rounds = {tuple(first[i : i + 4]) for i in range(0, len(first), 4)}
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len(rounds) > 3
    assert orders(1) == first
    assert orders(2) != first


def test_warm_up_ends_when_times_are_steady_and_is_counted(clock: FakeClock) -> None:
    falling = [2000e6, 1200e6, 800e6, 600e6, 480e6, 440e6]
    times = iter(falling)
    sampler, outcome = run(
        clock, {"a": clock.workload(lambda: next(times, 400e6))}, settings=Settings(budget_s=60)
    )
    samples = sampler.series[0].totals_ns
    assert outcome.steady
    assert samples[:6] == falling  # kept, in order
    assert 6 < outcome.warmup_rounds < 20
    assert set(samples[outcome.warmup_rounds :]) == {400e6}


def test_a_call_made_before_is_round_0(clock: FakeClock) -> None:
    sampler, outcome = run(
        clock, {"a": clock.workload(30e6)}, first_calls={"a": First(phase_ns=[900e6])}
    )
    series = sampler.series[0]
    assert series.rounds == list(range(sampler.round))
    assert series.totals_ns[:2] == [900e6, 30e6]
    assert outcome.warmup_rounds > 1


def test_one_slow_variant_keeps_all_in_warm_up(clock: FakeClock) -> None:
    slow = iter(range(40))
    falling = clock.workload(lambda: 100e9 * 0.9 ** next(slow, 40))
    _, alone = run(clock, {"a": clock.workload(300e6)})
    _, together = run(
        clock, {"a": clock.workload(300e6), "b": falling}, settings=Settings(budget_s=1e5)
    )
    assert together.warmup_rounds > 30 > alone.warmup_rounds


def test_a_workload_that_never_settles_is_sampled_all_the_same_and_says_so(
    clock: FakeClock,
) -> None:
    growing = iter(range(10_000))
    _, outcome = run(
        clock,
        {"a": clock.workload(lambda: 1e6 * 1.2 ** min(next(growing), 90))},
        settings=Settings(budget_s=5),
    )
    assert not outcome.steady
    assert outcome.stop_reason == "budget"


def test_short_calls_are_looped_until_the_clock_does_not_matter(clock: FakeClock) -> None:
    sampler, _ = run(clock, {"a": clock.workload(500)})
    series = sampler.series[0]
    assert series.calls * 500 >= 0.8 * MIN_SAMPLE_NS
    assert series.totals_ns == pytest.approx([500] * sampler.round)
    assert series.calls_per_sample[0] == 1  # the very first call is a sample of its own


def test_cold_samples_are_single_calls_after_an_eviction(clock: FakeClock) -> None:
    sampler, _ = run(
        clock,
        {"a": clock.workload(20_000), "b": clock.workload(30_000)},
        settings=Settings(cache="cold"),
    )
    assert len(clock.evictions) == 2 * sampler.round
    assert {n for series in sampler.series for n in series.calls_per_sample} == {1}


def test_hot_samples_of_short_calls_follow_an_untimed_call(clock: FakeClock) -> None:
    calls: list[str] = []

    def count(name: str, ns: float) -> Workload:
        return Workload(phases={"call": lambda: (calls.append(name), clock.spend(ns))})

    sampler, _ = run(clock, {"short": count("short", 1e6), "long": count("long", 300e6)})
    assert calls.count("long") == sampler.round
    assert calls.count("short") == 2 * sampler.round - 1  # not before the first call of all


def test_phases_are_given_what_the_one_before_returned(clock: FakeClock) -> None:
    seen: list[Any] = []
    workload = Workload(
        phases={
            "forward": lambda: len(seen),
            "backward": lambda value: seen.append(value) or "done",
            "optimizer": seen.append,
        }
    )
    time_phases(workload, 2, clock)
    assert seen == [0, "done", 2, "done"]


def test_every_run_of_a_loop_is_a_whole_one(clock: FakeClock) -> None:
    """The second backward of a loop must not find the gradients of the first."""
    log: list[str] = []
    workload = Workload(
        phases={
            "forward": lambda: (log.append("forward"), clock.spend(3)),
            "backward": lambda _: (log.append("backward"), clock.spend(5)),
        },
        reset=lambda: (log.append("reset"), clock.spend(100)),
    )
    assert time_phases(workload, 3, clock) == [9, 15]
    assert log == ["reset", "forward", "backward"] * 3


def test_caches_are_emptied_after_the_reset(clock: FakeClock) -> None:
    log: list[str] = []
    workload = Workload(
        phases={"call": lambda: log.append("call")}, reset=lambda: log.append("reset")
    )
    time_phases(workload, 1, clock, evict=lambda: log.append("evict"))
    assert log == ["reset", "evict", "call"]


def test_all_short_variants_grow_at_once(clock: FakeClock) -> None:
    sampler, _ = run(clock, {"a": clock.workload(500), "b": clock.workload(700)})
    first_change = [
        next(i for i, n in enumerate(s.calls_per_sample) if n > 1) for s in sampler.series
    ]
    assert first_change == [1, 1]


def test_reset_runs_before_samples_and_is_not_timed(clock: FakeClock) -> None:
    resets: list[float] = []

    def reset() -> None:
        resets.append(clock.now_ns)
        clock.spend(7e6)

    workload = Workload(phases={"call": lambda: clock.spend(300e6)}, reset=reset)
    sampler, _ = run(clock, {"a": workload})
    assert len(resets) == sampler.round
    assert set(sampler.series[0].totals_ns) == {300e6}


def test_noise_is_sampled_until_precise(clock: FakeClock) -> None:
    generator = random.Random(4)
    noisy = lambda: generator.gauss(30e6, 3e6)  # noqa: E731
    sampler, outcome = run(
        clock,
        {"a": clock.workload(noisy), "b": clock.workload(noisy)},
        settings=Settings(budget_s=60, target_interval=0.02),
    )
    assert outcome.stop_reason == "precise"
    assert sampler.round - outcome.warmup_rounds > 2 * MIN_ROUNDS


@pytest.mark.parametrize("difference", [1.0, 1.05, 2.0])
def test_a_comparison_ends_when_its_verdict_is_settled(clock: FakeClock, difference: float) -> None:
    """Though each variant's own time is not known to 2 % yet."""
    generator = random.Random(4)
    sampler, outcome = run(
        clock,
        {
            "a": clock.workload(lambda: generator.gauss(30e6, 1e6)),
            "b": clock.workload(lambda: generator.gauss(difference * 30e6, 1e6)),
        },
        settings=Settings(budget_s=600),
    )
    assert outcome.stop_reason == "settled"
    a, b = (one.totals_ns[outcome.warmup_rounds :] for one in sampler.series)
    ratio = estimate_ratio(b, a)
    assert judge(ratio.inverse()) == ("same" if difference == 1 else "slower")
    assert ratio.half_width is not None
    assert ratio.half_width <= SETTLED_INTERVAL


def test_a_variant_alone_is_sampled_until_precise(clock: FakeClock) -> None:
    generator = random.Random(4)
    load = clock.workload(lambda: generator.gauss(30e6, 3e6))
    sampler, outcome = run(clock, {"a": load}, settings=Settings(budget_s=600))
    assert outcome.stop_reason == "precise"
    time = estimate_median(sampler.series[0].totals_ns[outcome.warmup_rounds :])
    assert time.half_width is not None
    assert time.half_width <= TARGET_INTERVAL


def test_the_budget_ends_sampling(clock: FakeClock) -> None:
    generator = random.Random(5)
    sampler, outcome = run(
        clock,
        {"a": clock.workload(lambda: generator.lognormvariate(17, 1))},
        settings=Settings(budget_s=2, target_interval=0.0001),
    )
    assert outcome.stop_reason == "budget"
    assert 2 <= clock.now_s() < 2.5


@pytest.mark.parametrize(("min_rounds", "measured"), [(8, 8), (0, 1)])
def test_slow_calls_get_enough_rounds_for_an_interval(
    clock: FakeClock, min_rounds: int, measured: int
) -> None:
    """Unless somebody has set the budget."""
    sampler, outcome = run(
        clock,
        {"a": clock.workload(3e9), "b": clock.workload(4e9)},
        settings=Settings(budget_s=2, min_rounds=min_rounds),
    )
    assert outcome.stop_reason == "budget"
    assert sampler.round - outcome.warmup_rounds == measured


def test_two_modes_that_do_not_narrow_stall() -> None:
    widths = dict.fromkeys((12, 25, 50, 100, 110), 0.3)
    assert is_stalled(widths)
    assert not is_stalled({25: 0.3, 50: 0.21, 100: 0.15})
    assert not is_stalled({12: 0.3, 50: 0.3})  # too early to tell


def test_stalling_is_reported(clock: FakeClock) -> None:
    # Long stretches in one of two modes: a thousand samples are worth only a few.
    count = iter(range(10**9))
    modes = clock.workload(lambda: 1e6 if (next(count) // 97) % 2 else 2e6)
    _, outcome = run(clock, {"a": modes}, settings=Settings(budget_s=1000))
    assert outcome.stop_reason == "stalled"


def test_a_variant_that_raises_is_dropped_and_the_others_go_on(clock: FakeClock) -> None:
    calls = iter(range(1000))
    failures: list[tuple[str, str]] = []

    def fragile() -> None:
        clock.spend(30e6)
        if next(calls) == 15:
            raise ValueError("enough")

    sampler, outcome = run(
        clock,
        {"solid": clock.workload(30e6), "fragile": Workload(phases={"call": fragile})},
        fail=lambda variant, error: failures.append((variant, str(error))),
    )
    assert failures == [("fragile", "enough")]
    assert [series.variant for series in sampler.series] == ["solid"]
    assert outcome.stop_reason == "precise"


def test_progress_tells_warm_up_from_sampling(clock: FakeClock) -> None:
    seen: list[Progress] = []
    _, outcome = run(clock, {"a": clock.workload(30e6)}, observe=seen.append)
    assert seen[0].warmup_rounds is None
    assert seen[-1].warmup_rounds == outcome.warmup_rounds
    assert seen[-1].half_width == 0
    assert seen[-1].budget_s == Settings().budget_s


def test_garbage_is_collected_between_samples_only(clock: FakeClock) -> None:
    collected_during: list[bool] = []
    inside = False

    def note(phase: str, info: dict[str, int]) -> None:
        collected_during.append(inside)

    def wasteful() -> None:
        nonlocal inside
        inside = True
        for _ in range(1000):
            cycle: list[Any] = []
            cycle.append(cycle)
        inside = False
        clock.spend(200e6)

    gc.callbacks.append(note)
    try:
        run(clock, {"a": Workload(phases={"call": wasteful})}, settings=Settings(budget_s=20))
    finally:
        gc.callbacks.remove(note)
    assert len(collected_during) > 4  # it does happen
    assert not any(collected_during)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("samples_ns", "steady"),
    [
        ([], False),
        ([100.0] * 9, False),
        ([100.0] * 10, True),
        ([200.0] * 5 + [100.0] * 5, False),
        ([100.0] * 5 + [200.0] * 5, False),
        ([1e9, 1e9, 1e9], False),
        ([1e9, 1e9, 1e9, 1.01e9], True),  # long steps are believed sooner
        ([90, 110, 95, 105, 100, 108, 92, 103, 97, 100], True),  # scatter is not a trend
    ],
)
def test_steady(samples_ns: list[float], steady: bool) -> None:
    assert is_steady(samples_ns) is steady
