"""Workloads that are built anew while they are sampled: when, how often, and what for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from flopwatch.analysis.statistics import median
from flopwatch.settings import Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.renewal import ROUNDS, SHARE, Renewal
from flopwatch.worker.sampling import Outcome, Sampler
from tests.conftest import FakeClock
from tests.runner.test_session import SilentWatcher, run

pytestmark = pytest.mark.usefixtures("uncollected")

SAMPLE_NS = 10e6
NOISE = random.Random(0)


def take_about(sample_ns: float) -> Callable[[], float]:
    """Never the same, or sampling would end at once."""
    return lambda: sample_ns * NOISE.uniform(0.95, 1.05)


def sample(
    clock: FakeClock, build: Callable[[str], Workload], first_s: float = 0.01
) -> tuple[Sampler, Outcome, Renewal]:
    renewal = Renewal(build, first_s, clock.now_s)
    sampler = Sampler(
        {name: build(name) for name in ("a", "b")},
        baseline="a",
        settings=Settings(target_interval=1e-9, budget_s=5.0),
        target=clock,
        now_s=clock.now_s,
    )
    return sampler, sampler.run(renewal), renewal


def test_all_are_built_anew_every_few_rounds_after_warm_up(clock: FakeClock) -> None:
    places = {"a": itertools.count(), "b": itertools.count()}

    def build(variant: str) -> Workload:
        next(places[variant])
        return clock.workload(take_about(SAMPLE_NS))

    sampler, outcome, renewal = sample(clock, build)
    assert len(renewal.rounds) > 10
    assert renewal.rounds[0] >= outcome.warmup_rounds + ROUNDS
    gaps = [later - earlier for earlier, later in itertools.pairwise(renewal.rounds)]
    assert min(gaps) >= ROUNDS
    built = 1 + len(renewal.rounds)
    assert [next(place) for place in places.values()] == [built, built]
    assert all(len(series.rounds) == sampler.round for series in sampler.series)


def test_it_takes_its_share_of_the_time_and_no_more(clock: FakeClock) -> None:
    def build(variant: str) -> Workload:
        clock.spend(30e6)
        return clock.workload(take_about(SAMPLE_NS))

    _, _, renewal = sample(clock, build)
    spent_s = len(renewal.rounds) * 2 * (0.03 + 2 * SAMPLE_NS / 1e9)
    assert 0.5 * SHARE < spent_s / 10 <= SHARE


def test_one_unlucky_place_does_not_decide(clock: FakeClock) -> None:
    """Each place costs up to half of the time more, as long as a workload has it."""
    luck = random.Random(1)

    def build(variant: str) -> Workload:
        return clock.workload(SAMPLE_NS * luck.choice([1.0, 1.0, 1.1, 1.5]))

    sampler, outcome, _ = sample(clock, build)
    a, b = (series.totals_ns[outcome.warmup_rounds :] for series in sampler.series)
    assert median(a) == pytest.approx(median(b), rel=0.11)
    assert len(set(a)) == len(set(b)) == 3


def test_what_is_slow_to_build_is_built_once(clock: FakeClock) -> None:
    time_ns = take_about(SAMPLE_NS)
    _, _, renewal = sample(clock, lambda _: clock.workload(time_ns), first_s=2.0)
    assert not renewal.rounds


def test_what_cannot_be_built_again_goes_on_as_it_is(clock: FakeClock) -> None:
    left = iter([clock.workload(take_about(n * SAMPLE_NS)) for n in (1, 2)])
    sampler, outcome, renewal = sample(clock, lambda _: next(left))
    assert not renewal.rounds
    assert outcome.stop_reason != "precise"
    medians_ns = [median(series.totals_ns) for series in sampler.series]
    assert medians_ns == pytest.approx([SAMPLE_NS, 2 * SAMPLE_NS], rel=0.02)


SUITE = """
import importlib
import torch
import flopwatch

suite = flopwatch.Suite("mine", axes={"kind": ["plain", "shared", "compiled"]}, variants=["a", "b"])

@suite.build
def build(case):
    x = torch.randn(64)
    if case.kind == "compiled":
        importlib.import_module("torch._dynamo")  # as torch.compile does
    return flopwatch.Workload(phases={"call": lambda: x + x}, renewable=case.kind != "shared")
"""


def test_records_tell_when(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SUITE)
    settings = Settings(budget_s=0.5, target_interval=1e-9, silence_limit_s=60)
    report = run(path, SilentWatcher(), settings=settings)
    assert len(report.measured) > 1
    for record in report.measured:
        assert record.status == "ok", record.message
        assert bool(record.rebuilt_rounds) == (record.params["kind"] == "plain")
        assert all(round_ >= record.warmup_samples for round_ in record.rebuilt_rounds)
