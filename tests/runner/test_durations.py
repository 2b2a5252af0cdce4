"""How long a run will take, before it and while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flopwatch.devices import matmul_rates
from flopwatch.devices.cpu import CpuClock
from flopwatch.devices.matmul_rates import measure_rate
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.records.record import Record, encode
from flopwatch.runner.durations import (
    CASE_S,
    COMPILE_LAYER_S,
    COMPILE_S,
    EFFICIENCY,
    OTHER_RUNS,
    RANKS_S,
    SAMPLING_S,
    SMALL_POWER,
    SPREAD,
    START_S,
    Duration,
    Estimate,
    Observation,
    Speed,
    estimate_group,
    estimate_run,
    expect_left_s,
    find_correction,
    find_slowdown,
    list_dtypes,
    read_history,
    update,
)
from flopwatch.runner.schedule import Group, fit_budget
from flopwatch.settings import QUICK, Settings
from flopwatch.worker import called_functions
from flopwatch.worker.sampling import Progress
from tests.conftest import make_record

SETTINGS = Settings(budget_s=10.0, min_rounds=8)
RATES = {"float32": 1e9}
SPEED = Speed(rates=RATES)


def make_group(size: int = 0, ranks: int | None = None, **flops: float) -> Group:
    """Variants with that many FLOPs in float32."""
    return Group(
        suite="demo",
        baseline="a",
        params={"size": size, **({} if ranks is None else {"ranks": ranks})},
        variants=tuple(flops),
        flops={variant: {"float32": count} for variant, count in flops.items()},
    )


def expect_s(group: Group, slowdown: float = 1.0, settings: Settings = SETTINGS) -> float:
    return expect(group, slowdown, settings).total_s


def expect(group: Group, slowdown: float = 1.0, settings: Settings = SETTINGS) -> Duration:
    return estimate_group(group, settings, Speed(rates=RATES, slowdown=slowdown))


def make_duration(seconds: float) -> Duration:
    return Duration(overhead_s=seconds / 4, sampling_s=seconds * 3 / 4)


def multiply(duration: Duration, factor: float) -> Duration:
    return Duration(
        overhead_s=factor * duration.overhead_s, sampling_s=factor * duration.sampling_s
    )


def follow(
    groups: Sequence[Group],
    taken: Sequence[Duration],
    settings: Settings = SETTINGS,
    speed: Speed = SPEED,
) -> list[float]:
    """What is expected to be left after 0, 1, ... groups, over what is really left."""
    estimate = estimate_run(groups, settings, speed)
    left_s = sum(each.total_s for each in taken)
    ratios = [estimate.expected_s / left_s]
    for group, each in zip(groups[:-1], taken[:-1], strict=True):
        estimate = update(estimate, group, each, was_measured=True)
        left_s -= each.total_s
        ratios.append(estimate.expected_s / left_s)
    return ratios


def test_small_cases_take_their_overhead_and_the_usual_sampling() -> None:
    fixed_s = START_S + 2 * CASE_S
    assert expect_s(make_group(a=0.0, b=0.0)) == pytest.approx(fixed_s + 2 * SAMPLING_S)
    # On a busy machine samples vary, up to the budget.
    busy_s = expect_s(make_group(a=0.0, b=0.0), slowdown=2.0)
    assert busy_s == pytest.approx(2**SMALL_POWER * fixed_s + 4 * 2 * SAMPLING_S)
    busy_s = expect_s(make_group(a=0.0, b=0.0), slowdown=8.0)
    assert busy_s == pytest.approx(8**SMALL_POWER * fixed_s + 2 * 10.0)


def test_large_cases_take_as_long_as_their_rounds() -> None:
    run_s = 5e9 / RATES["float32"] / EFFICIENCY
    overhead_s = START_S + 2 * CASE_S + OTHER_RUNS * run_s
    # 7 rounds of warm-up and 8 measured, which even a slow case gets.
    assert expect_s(make_group(a=2e9, b=3e9)) == pytest.approx(overhead_s + 15 * run_s)
    # Where the user has set the budget, the rounds must do with it.
    given = replace(SETTINGS, min_rounds=0)
    found_s = expect_s(make_group(a=2e9, b=3e9), settings=given)
    assert found_s == pytest.approx(overhead_s + 20.0)


def test_what_has_costs_of_its_own_takes_longer() -> None:
    plain_s = expect_s(make_group(a=0.0, b=0.0))
    assert expect_s(make_group(a=0.0, compiled=0.0)) == pytest.approx(plain_s + COMPILE_S)
    job = TrainingJob("small", 128, compiled=True).to_dict()
    model = replace(make_group(a=0.0, compiled=0.0), jobs={"compiled": job})
    assert expect_s(model) == pytest.approx(plain_s + COMPILE_S + 12 * COMPILE_LAYER_S)
    assert expect_s(make_group(a=0.0, b=0.0, ranks=4)) == pytest.approx(plain_s + 4 * RANKS_S)
    model = replace(make_group(a=1e9, b=1e9), jobs=dict.fromkeys("ab", {"model": "small"}))
    run_s = 2e9 / RATES["float32"] / EFFICIENCY
    extra_s = expect_s(model) - expect_s(make_group(a=1e9, b=1e9))
    assert extra_s == pytest.approx(8 * run_s)  # each measured sample twice, with instruments


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_constant_load_is_known_after_two_groups(factor: float) -> None:
    groups = [make_group(size=size, a=1e8, b=1e8) for size in range(12)]
    taken = [multiply(expect(group), factor) for group in groups]
    for ratio in follow(groups, taken)[2:]:
        assert 1 / 1.5 < ratio < 1.5


@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_a_constant_load_is_known_where_groups_grow(factor: float) -> None:
    groups = [make_group(size=size, a=2.0**size * 1e8) for size in range(9)]
    taken = [multiply(expect(group), factor) for group in groups]
    for ratio in follow(groups, taken)[5:]:  # when most of the time is still to come
        assert 1 / 1.5 < ratio < 1.5


def test_one_odd_group_does_not_decide() -> None:
    groups = [make_group(size=size, a=1e8) for size in range(12)]
    taken = [multiply(expect(group), 2) for group in groups]
    taken[3] = multiply(taken[3], 20)
    for ratio in follow(groups, taken)[4:]:
        assert 1 / 1.2 < ratio < 1.2


def test_a_load_that_begins_during_a_run_is_followed() -> None:
    groups = [make_group(size=size, a=1e8) for size in range(20)]
    taken = [multiply(expect(g), 1 if size < 8 else 4) for size, g in enumerate(groups)]
    for ratio in follow(groups, taken)[13:]:
        assert 1 / 1.5 < ratio < 1.5


def test_what_was_not_measured_teaches_nothing() -> None:
    groups = [make_group(size=size, a=1e8) for size in range(3)]
    short = Duration(overhead_s=0.1, sampling_s=0.0)
    estimate = estimate_run(groups, SETTINGS, SPEED, budget_s=100.0)
    after = update(estimate, groups[0], short, was_measured=False)
    assert after.expected_s == pytest.approx(estimate.expected_s * 2 / 3)
    assert (after.cases, after.budget_s) == (2, pytest.approx(99.9))


def test_groups_of_its_own_size_count_most() -> None:
    short, long = (1.0, 1.0), (64.0, 256.0)
    assert find_correction(64.0, [short, long, short]) > 2
    assert find_correction(1.0, [short, long, short]) == 1.0


def test_the_runs_own_budget_ends_it_after_what_was_begun() -> None:
    """Sampling keeps to it. Building and checking what was begun are not cut short."""

    def estimate_within(budget_s: float, groups: Sequence[Group]) -> Estimate:
        fitted = fit_budget(budget_s, groups, SETTINGS)
        return estimate_run(groups, fitted, SPEED, budget_s=budget_s)

    small = [make_group(size=size, a=1e6, b=1e6) for size in range(40)]
    assert estimate_within(30.0, small).range_s[1] <= 33.0
    large = [make_group(size=size, a=2e9, b=3e9) for size in range(4)]
    estimate = estimate_within(30.0, large)
    first_s = estimate.expect_group(large[0].id).total_s
    assert first_s > 30.0
    assert estimate.expected_s == estimate.range_s[1] == first_s
    taken = Duration(overhead_s=10.0, sampling_s=30.0)
    assert update(estimate, large[0], taken, was_measured=True).expected_s == 0.0


def make_sampled(size: int, seconds: int, share: float | None = None) -> Record:
    """Ended so many seconds after the hour, with 50 s of samples of half a second."""
    samples = {"samples_ns": {"call": [0.5e9] * 101}, "rounds": list(range(101))}
    return replace(
        make_record(),
        **samples,
        calls_per_sample=[1] * 101,
        warmup_samples=5,
        settings=SETTINGS,
        group_id=str(size),
        environment={} if share is None else {"load": {"background_share": share}},
        measured_at=f"2026-11-18T10:{seconds // 60:02}:{seconds % 60:02}+00:00",
    )


def observe(
    *records: Record, slowdown: float = 1.0, cores: int | None = None
) -> Sequence[Observation]:
    speed = Speed(rates={}, slowdown=slowdown)
    found = estimate_run([make_group(a=0.0)], SETTINGS, speed, history=records, cores=cores)
    return found.observations


def test_earlier_records_say_how_long_their_groups_took() -> None:
    first, second = observe(make_sampled(1, 60), make_sampled(2, 140))
    assert first.taken.sampling_s == second.taken.sampling_s == pytest.approx(50.0, abs=1.0)
    # When the first one began is not known, nor how long it was built and checked.
    assert first.taken.overhead_s == first.expected.overhead_s
    assert second.taken.overhead_s == pytest.approx(30.0)
    group, speed = make_group(a=0.0), Speed(rates={})
    plain = estimate_run([group], SETTINGS, speed)
    known = replace(plain, observations=[first, second])
    # Building is far longer than usual; sampling is never longer than the budget.
    assert known.expect_group(group.id).overhead_s > 10 * plain.expect_group(group.id).overhead_s
    assert known.expect_group(group.id).sampling_s == SETTINGS.budget_s


def test_earlier_records_count_where_the_run_was_alike() -> None:
    record = make_sampled(1, 60)
    for changed in (replace(SETTINGS, threads=8), replace(SETTINGS, target_interval=0.001)):
        assert not observe(replace(record, settings=changed))
    assert not observe(replace(record, status="oom"))
    # Taken while other programs had three quarters of a core, of which one thread had the rest.
    loaded = make_sampled(1, 60, share=0.75)
    assert not observe(loaded, cores=1)
    (seen,) = observe(loaded, cores=1, slowdown=3.0)
    assert seen.expected.overhead_s == pytest.approx(4**SMALL_POWER * (START_S + CASE_S))


def test_history_is_that_of_this_machine_and_never_stops_a_run(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_history(path, {}) == []
    here, there = ({"machine": {"machine_id": name}} for name in ("here", "there"))
    lines = [encode(replace(make_record(), environment=where)) for where in (here, there)]
    path.write_bytes(b"\n".join([*lines, b"broken", b""]))
    assert [r.environment for r in read_history(path, here)] == [here]
    path.write_bytes(b"\x00" * 100)
    assert read_history(path, here) == []


def test_each_dtype_counts_at_its_own_rate_and_others_at_float32s() -> None:
    group = replace(make_group(a=0.0), flops={"a": {"bfloat16": 1e9, "int8": 3e9}})
    assert list_dtypes([group]) == ["float32", "bfloat16"]
    rates = {"float32": 1e9, "bfloat16": 5e8}
    found_s = estimate_group(group, SETTINGS, Speed(rates=rates)).total_s
    assert found_s == pytest.approx(expect_s(make_group(a=5e9)))
    assert list_dtypes([Group(suite="demo", baseline="a", params={}, variants=("a",))]) == []


def test_it_says_what_it_assumes() -> None:
    estimate = Estimate(
        cases=36,
        prior={"g": make_duration(4500.0), "h": make_duration(2700.0)},
        rates={"float32": 85.2e9},
    )
    assert estimate.range_s == pytest.approx((7200 / SPREAD, 7200 * SPREAD))
    assert str(estimate) == (
        "36 cases in 2 groups, about 1h20m to 3h (a plain matmul here: float32 85.2 GFLOP/s)"
    )
    bare = Estimate(cases=1, prior={"g": make_duration(6.0)}, rates={})
    assert str(bare) == "1 case in 1 group, about 4 to 9 s"
    seen = [Observation(expected=make_duration(6.0), taken=make_duration(6.0))] * 3
    assert replace(bare, observations=seen).describe() == "about 6 s"
    assert replace(bare, observations=seen).describe(2.0) == "about 4 s"


def test_a_rate_is_that_of_a_product() -> None:
    rate = measure_rate("float32", "cpu", CpuClock())
    assert rate is not None
    assert 1e7 < rate < 1e16
    assert measure_rate("float12", "cpu", CpuClock()) is None


def test_a_probe_of_an_accelerator_grows_until_the_device_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow one is not kept for seconds, and a fast one not asked for less than it can."""
    for flops_per_s, largest in ((1e12, 1024), (1e15, 4096)):
        sizes: list[int] = []

        def time_one(
            dtype: str,
            device: str,
            clock: object,
            size: int = 512,
            enough_ns: float | None = None,
            speed: float = flops_per_s,
        ) -> list[float]:
            sizes.append(size)  # noqa: B023  used at once
            return [2 * size**3 / speed * 1e9]

        monkeypatch.setattr(matmul_rates, "time_matmuls", time_one)
        assert measure_rate("bfloat16", "cuda", CpuClock()) == pytest.approx(flops_per_s)
        assert sizes[-1] == largest
        sizes.clear()
        assert measure_rate("float32", "cpu", CpuClock()) == pytest.approx(flops_per_s)
        assert sizes == [512, 768]


def test_a_type_that_a_cpu_emulates_is_not_probed_in_larger_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def take_a_second(*words: object, **more: object) -> list[float]:
        sizes.append(512 if len(words) < 4 else int(str(words[3])))
        return [1e9]

    monkeypatch.setattr(matmul_rates, "time_matmuls", take_a_second)
    assert measure_rate("bfloat16", "cpu", CpuClock()) == pytest.approx(2 * 512**3)
    assert sizes == [512, 512]


# Replays: what groups of the built-in suites took on two cores that other programs kept busy, with
# the speed that was measured before: (overhead, sampling) of each group.
QUICK_SETTINGS = replace(QUICK, threads=2)
ACTIVATIONS = [make_group(size=n, a=0, b=0, c=0, d=0, e=0) for n in range(2)]
ACTIVATIONS_TOOK = [(18.8, 9.6), (15.5, 9.9)]
ATTENTION = [
    make_group(size=256, a=4e8, b=4e8),
    make_group(size=1024, a=6.4e9, b=6.4e9, compiled=6.4e9),
]
ATTENTION_TOOK = [(14.3, 8.8), (58.6, 34.9)]


def replay(took: Sequence[tuple[float, float]]) -> list[Duration]:
    return [
        Duration(overhead_s=overhead_s, sampling_s=sampling_s) for overhead_s, sampling_s in took
    ]


def test_a_replay_of_small_operations_on_a_busy_machine() -> None:
    """Without earlier records: at the start, and after the first group."""
    speed = Speed(rates={}, slowdown=6.9)
    for ratio in follow(ACTIVATIONS, replay(ACTIVATIONS_TOOK), QUICK_SETTINGS, speed):
        assert 1 / 1.5 < ratio < 1.5


def test_a_replay_of_a_compiled_variant_on_a_busy_machine() -> None:
    speed = Speed(rates={"float32": 12.6e9}, slowdown=7.6)
    start = follow(ATTENTION, replay(ATTENTION_TOOK), QUICK_SETTINGS, speed)[0]
    assert 1 / 1.5 < start < 1.5


def test_long_overhead_does_not_make_sampling_longer_than_its_budget() -> None:
    groups = [make_group(size=size, a=0.0, b=0.0) for size in range(8)]
    taken = [Duration(overhead_s=20.0, sampling_s=4.0) for _ in groups]
    for ratio in follow(groups, taken, QUICK_SETTINGS)[4:]:
        assert 1 / 1.3 < ratio < 1.3


def test_the_rounds_of_a_slow_group_say_how_long_the_rest_will_take() -> None:
    """Rounds take 4 s, and were expected to take half a second."""
    expected = expect(make_group(a=0.25e9 * EFFICIENCY, b=0.25e9 * EFFICIENCY))
    warmup, measured = 7, SETTINGS.min_rounds
    whole_s = (warmup + measured) * 4.0
    for rounds in range(1, warmup + measured):
        progress = make_progress(rounds, elapsed_s=4.0 * rounds, warmup=warmup)
        left_s = expect_left_s(expected, 4.0 * rounds, progress)
        # And the memory of two runs of all variants.
        assert left_s == pytest.approx(whole_s - 4.0 * rounds + 8.0)


def test_measured_rounds_with_instruments_are_expected_to_take_longer() -> None:
    expected = Duration(overhead_s=1.0, sampling_s=1.0, least_rounds=8, instrumented=2.0)
    progress = make_progress(7, elapsed_s=28.0, warmup=7)
    assert expect_left_s(expected, 30.0, progress) == pytest.approx(8 * 8.0 + 8.0)


def make_progress(rounds: int, elapsed_s: float, warmup: int) -> Progress:
    return Progress(
        rounds=rounds,
        warmup_rounds=warmup if rounds >= warmup else None,
        steady=None,
        half_width=None,
        elapsed_s=elapsed_s,
        budget_s=20.0,
    )


def test_a_share_of_the_cores_during_a_run_is_its_slowdown() -> None:
    two = replace(SETTINGS, threads=2)
    assert find_slowdown(0.8, two, 2) == pytest.approx(5.0)
    assert find_slowdown(0.8, replace(two, device="cuda"), 2) == 1.0


def test_one_matmul_that_waits_for_seconds_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ns = [1e7] * 9 + [5e9]
    monkeypatch.setattr(matmul_rates, "time_matmuls", lambda *_, **__: times_ns)
    assert measure_rate("float32", "cpu", CpuClock()) == pytest.approx(2 * 768**3 / 1e7 * 1e9)


def test_the_slowdown_is_the_time_over_that_of_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads that were on a core for a quarter of the time each."""
    clocks = {"perf_counter": iter([0.0, 8.0]), "process_time": iter([1.0, 5.0])}
    fake_time = SimpleNamespace(**{name: values.__next__ for name, values in clocks.items()})
    monkeypatch.setattr(called_functions, "time", fake_time)
    monkeypatch.setattr(called_functions, "measure_rate", lambda *_: 1e9)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    found = called_functions.measure_speed(["float32"], "cpu")
    assert found == {"rates": {"float32": 1e9}, "slowdown": 4.0}
