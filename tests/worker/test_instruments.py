"""Instruments inside a workload: right numbers on a clock that tests control, on any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, repeat
from typing import Any

import pytest

from flopwatch.devices.cpu import CpuClock
from flopwatch.devices.cuda import CudaClock
from flopwatch.errors import SuiteError
from flopwatch.settings import Settings
from flopwatch.suites.workload import Stopwatch, Workload
from flopwatch.worker.instruments import ClockStopwatch, CutShort, Diverged, Reading, take_points
from flopwatch.worker.sampling import MIN_SAMPLE_NS
from tests.conftest import FakeClock
from tests.devices.test_cuda import FakeCuda
from tests.worker.test_sampling import run

pytestmark = pytest.mark.usefixtures("uncollected")


class Instrumented:
    """A workload of two layers and a rest, with a stopwatch in it that costs time itself."""

    def __init__(self, clock: FakeClock, layer_ns: float, mark_ns: float = 10) -> None:
        self.clock = clock
        self.layer_ns, self.mark_ns = layer_ns, mark_ns
        self.stopwatch: Stopwatch | None = None
        self.log: list[str] = []

    def layer(self, region: str) -> None:
        if self.stopwatch is not None:
            self.clock.spend(self.mark_ns)
            self.stopwatch.start(region)
        self.clock.spend(self.layer_ns)
        if self.stopwatch is not None:
            self.stopwatch.stop(region)

    def forward(self) -> None:
        self.log.append("instrumented" if self.stopwatch else "plain")
        self.layer("forward/layer")
        self.layer("forward/layer")
        self.clock.spend(self.layer_ns)

    def backward(self, _: object) -> None:
        self.layer("backward/layer")

    @contextmanager
    def instrument(self, stopwatch: Stopwatch) -> Iterator[None]:
        self.clock.spend(1e6)  # must not be timed
        self.stopwatch = stopwatch
        yield
        self.stopwatch = None
        self.clock.spend(1e6)

    def workload(self) -> Workload:
        phases: dict[str, Callable[..., Any]] = {
            "forward": self.forward,
            "backward": self.backward,
        }
        return Workload(
            phases=phases,
            reset=lambda: self.clock.spend(500),
            instrument=self.instrument,
        )


@pytest.mark.parametrize("layer_ns", [30e6, 400.0])  # one run a sample, and many
def test_regions_are_timed_beside_plain_samples(clock: FakeClock, layer_ns: float) -> None:
    sampler, outcome = run(clock, {"a": Instrumented(clock, layer_ns).workload()})
    series = sampler.series[0]
    measured = sampler.round - outcome.warmup_rounds
    assert (series.calls > 1) is (layer_ns < MIN_SAMPLE_NS)
    assert series.totals_ns[-1] == pytest.approx(4 * layer_ns)
    assert series.instrumented_ns == pytest.approx([4 * layer_ns + 30] * measured)
    assert {name: region.calls for name, region in series.regions.items()} == {
        "forward/layer": 2,
        "backward/layer": 1,
    }
    assert series.regions["forward/layer"].samples_ns == pytest.approx([2 * layer_ns] * measured)
    assert series.regions["backward/layer"].samples_ns == pytest.approx([layer_ns] * measured)


def test_plain_samples_are_taken_as_without_instruments(clock: FakeClock) -> None:
    """The same rounds in the same order; each instrumented run follows its own plain sample."""
    instrumented = {name: Instrumented(clock, 300e6) for name in "ab"}
    order: list[str] = []
    sampler, outcome = run(
        clock,
        {name: one.workload() for name, one in instrumented.items()},
        settings=Settings(budget_s=60),
        announce=order.append,
    )
    warmup = 2 * outcome.warmup_rounds
    assert order[warmup::2] == order[warmup + 1 :: 2]
    own = FakeClock()
    plain_order: list[str] = []
    plain = {name: own.workload(900e6, 300e6) for name in "ab"}
    run(own, plain, settings=Settings(budget_s=60), announce=plain_order.append)
    assert (order[:warmup] + order[warmup::2])[: len(plain_order)] == plain_order
    for one in instrumented.values():
        assert one.log == ["plain"] * outcome.warmup_rounds + ["plain", "instrumented"] * (
            sampler.round - outcome.warmup_rounds
        )


def test_cold_instrumented_runs_find_the_caches_empty(clock: FakeClock) -> None:
    workload = Instrumented(clock, 30e6).workload()
    sampler, outcome = run(clock, {"a": workload}, settings=Settings(cache="cold"))
    assert len(clock.evictions) == 2 * sampler.round - outcome.warmup_rounds


def test_a_failure_in_an_instrumented_run_keeps_what_was_measured(clock: FakeClock) -> None:
    one = Instrumented(clock, 30e6)
    runs = iter(range(1000))

    def forward() -> None:
        one.forward()
        if one.stopwatch is not None and next(runs) == 3:
            raise ValueError("enough")

    seen: list[Any] = []
    failures: list[str] = []
    workload = Workload(
        phases={"forward": forward, "backward": one.backward}, instrument=one.instrument
    )
    sampler, outcome = run(
        clock,
        {"solid": clock.workload(30e6), "fragile": workload},
        begin=seen.extend,
        fail=lambda variant, error: failures.append(f"{variant}: {error}"),
    )
    assert failures == ["fragile: enough"]
    fragile = seen[1]
    assert len(fragile.rounds) - outcome.warmup_rounds == 4
    assert len(fragile.instrumented_ns) == 3
    assert {len(region.samples_ns) for region in fragile.regions.values()} == {3}
    assert [series.variant for series in sampler.series] == ["solid"]


def test_a_region_that_does_not_always_run_is_refused(clock: FakeClock) -> None:
    one = Instrumented(clock, 300e6)
    turns = iter(range(10**6))

    def forward() -> None:
        one.layer("forward/always")
        if next(turns) % 3 == 0:
            one.layer("forward/sometimes")

    workload = Workload(phases={"forward": forward}, instrument=one.instrument)
    with pytest.raises(
        SuiteError, match="region 'forward/sometimes' ran [01] times in one run and"
    ):
        run(clock, {"a": workload})


def press(stopwatch: Stopwatch, *presses: str) -> None:
    for one in presses:
        button, _, region = one.partition(" ")
        getattr(stopwatch, button)(region)


@pytest.mark.parametrize(
    ("presses", "complaint"),
    [
        (["start f/a"], "region 'f/a' is started but not stopped"),
        (["stop f/a"], "region 'f/a' is stopped but not started"),
        (["start f/a", "stop f/a", "stop f/a"], "region 'f/a' is stopped but not started"),
        (["start f/a", "start f/a"], "region 'f/a' is started again before it was stopped"),
        (["start a", "stop a"], r"region 'a' is not named phase/region, with a phase .*\(f, g\)"),
        (["start h/a", "stop h/a"], "region 'h/a' is not named phase/region"),
        (["start f/", "stop f/"], "region 'f/' is not named phase/region"),
        (["start f/a", "stop f/a"], "region 'f/a' is not run equally often in every run"),
    ],
)
def test_wrong_presses_are_told(clock: FakeClock, presses: list[str], complaint: str) -> None:
    def press_and_read(stopwatch: ClockStopwatch) -> None:
        press(stopwatch, *presses)
        stopwatch.read(2, ["f", "g"])

    with pytest.raises(SuiteError, match=complaint):
        press_and_read(ClockStopwatch(clock))


def test_regions_may_nest_and_touch_other_regions(clock: FakeClock) -> None:
    stopwatch = ClockStopwatch(clock)
    stopwatch.start("f/outer")
    clock.spend(5)
    stopwatch.start("f/inner")
    clock.spend(7)
    stopwatch.stop("f/outer")
    clock.spend(11)
    stopwatch.stop("f/inner")
    assert stopwatch.read(1, ["f"]) == {
        "f/outer": Reading(calls=1, ns=12),
        "f/inner": Reading(calls=1, ns=18),
    }


def test_threads_may_press_at_once() -> None:
    stopwatch = ClockStopwatch(CpuClock())

    def work(number: int) -> None:
        for _ in range(500):
            press(stopwatch, f"start f/{number}", f"stop f/{number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    readings = stopwatch.read(1, ["f"])
    assert {region: reading.calls for region, reading in readings.items()} == {
        f"f/{number}": 500 for number in range(4)
    }


def test_a_region_may_be_stopped_by_another_thread_than_it_was_started_by(clock: FakeClock) -> None:
    stopwatch = ClockStopwatch(clock)
    stopwatch.start("f/a")
    clock.spend(9)
    thread = threading.Thread(target=stopwatch.stop, args=("f/a",))
    thread.start()
    thread.join()
    assert stopwatch.read(1, ["f"]) == {"f/a": Reading(calls=1, ns=9)}


def test_regions_on_a_gpu_are_timed_where_they_run() -> None:
    cuda = FakeCuda()
    stopwatch = ClockStopwatch(CudaClock(cuda))
    for _ in range(2):
        stopwatch.start("f/a")
        cuda.launch(3000.0)
        stopwatch.stop("f/a")
        cuda.launch(5000.0)
    assert cuda.synchronizations == 0
    assert stopwatch.read(1, ["f"]) == {"f/a": Reading(calls=2, ns=pytest.approx(6000))}


def test_points_become_plain_numbers() -> None:
    import torch

    points = [{"loss": torch.tensor(2.5), "step": True}, {"step": 3, "loss": "1e-3"}]
    assert list(take_points(lambda: points)) == [
        {"loss": 2.5, "step": 1.0},
        {"loss": 1e-3, "step": 3.0},
    ]
    assert list(take_points(lambda: [])) == []


@pytest.mark.parametrize(
    ("second", "error", "complaint"),
    [
        ({"loss": 1.0, "step": 2}, SuiteError, "first point has loss, and point 2 loss, step"),
        ({}, SuiteError, "first point has loss, and point 2 nothing; yield the same names"),
        ({"loss": None}, SuiteError, "yield a NoneType as 'loss'; yield numbers"),
        (0.5, SuiteError, "the curves yield float; yield mappings of names to numbers"),
        ({"loss": float("inf")}, Diverged, "its curve diverged: loss is inf at point 2"),
    ],
)
def test_what_curves_may_not_yield(second: Any, error: type[Exception], complaint: str) -> None:
    points = take_points(lambda: [{"loss": 2.0}, second])
    assert next(points) == {"loss": 2.0}
    with pytest.raises(error, match=complaint):
        next(points)


def test_curves_without_end_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopwatch.worker.instruments.MOST_NUMBERS", 10)
    points = take_points(lambda: repeat({"step": 1, "loss": 2.0}))
    taken = []
    with pytest.raises(CutShort, match="^its curves end after 5 points: a record holds 10 numbers"):
        taken.extend(points)
    assert len(taken) == 5


def test_curves_that_take_too_long_are_cut_short() -> None:
    hours = (3600.0 * hour for hour in count(step=7))
    points = take_points(lambda: repeat({"loss": 2.0}), hours.__next__)
    with pytest.raises(CutShort, match="^its curves end after 4 points: they took 24 hours"):
        list(points)
